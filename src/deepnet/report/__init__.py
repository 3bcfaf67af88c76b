"""One HTML file for one run or several: what happened, layer by layer, with nothing fetched from anywhere."""
