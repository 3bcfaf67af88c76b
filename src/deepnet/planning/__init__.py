"""What a run takes, found before it runs: parameters, operations, bytes, disk, time."""
