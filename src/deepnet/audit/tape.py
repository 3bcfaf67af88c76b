"""One run of a model as a list of operations on values, which can be computed again from changed values."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

_Key = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
_Place = tuple[tuple[int, ...], tuple[int, ...], int]
"""Size, stride and offset of a view in its memory."""


@dataclass(eq=False)
class Value:
    """A tensor as it was at one moment; `made_by` is None where it came from outside."""

    tensor: Tensor
    position: int
    """Place on the tape of the operation that made it; -1 for what came from outside."""
    made_by: "Operation | None" = None
    parameter: str | None = None
    """Name of the parameter it is, or a view of."""
    is_input: bool = False
    read_by: "list[Operation]" = field(default_factory=list)

    @property
    def width(self) -> int:
        """Return the size of the last axis."""
        return self.tensor.shape[-1] if self.tensor.dim() else 1


@dataclass(eq=False)
class Operation:
    """One call: its arguments with values in place of tensors, and what it returned."""

    function: OpOverload | None
    """None where a tensor changed because another one that shares its memory was written to."""
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    position: int
    inputs: list[Value]
    outputs: list[Value] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the name without its overload and without the mark of an in-place form, such as "add"."""
        if self.function is None:
            return "overwrite"
        return self.function._schema.name.removeprefix("aten::").removesuffix("_")

    @property
    def output(self) -> Value:
        """Return the first result."""
        return self.outputs[0]

    def run(self, changed: Mapping[Value, Tensor]) -> list[Tensor]:
        """Return the results with some inputs replaced; nothing recorded is written to."""
        if self.function is None:
            old, new = (changed.get(value, value.tensor) for value in self.inputs)
            return [_overwritten(old, new, **self.options)]

        def given(value: Value) -> Tensor:
            tensor = changed.get(value, value.tensor)
            return tensor.clone() if self.function and self.function._schema.is_mutable else tensor

        arguments, options = tree_map_only(Value, given, (self.arguments, dict(self.options)))
        return _tensors(self.function(*arguments, **options))


@dataclass(eq=False)
class Tape:
    """The operations of one run, in order, and the values that the model returned."""

    operations: list[Operation]
    returned: list[Value]

    def replay(
        self,
        start: Value,
        replacement: Tensor,
        end: Value,
        *,
        held: Callable[[Operation], bool] = lambda operation: False,
    ) -> Tensor:
        """Return what `end` would be if `start` were `replacement`; what `held` is true for keeps its results."""
        changed = {start: replacement}
        for operation in self.operations[start.position + 1 : end.position + 1]:
            if not held(operation) and any(value in changed for value in operation.inputs):
                changed.update(zip(operation.outputs, operation.run(changed), strict=True))
        return changed.get(end, end.tensor)


class Recorder(TorchDispatchMode):
    """Records every operation under it; tensors are told apart by the memory they show, so views are found again."""

    def __init__(
        self, model: nn.Module, inputs: Iterable[Tensor], *, names: Mapping[str, str]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []
        self._parameters = {_memory(p): names[name] for name, p in model.named_parameters()}
        self._values: dict[_Key, Value] = {}
        self._shown: dict[int, dict[_Key, Tensor]] = {}
        for tensor in inputs:
            self._show(tensor, Value(tensor, -1, is_input=True))

    def value(self, tensor: Tensor) -> Value:
        """Return the value that a tensor is now; one never seen before comes from outside."""
        found = self._values.get(_key(tensor))
        if found is None:
            found = Value(tensor, -1, parameter=self._parameters.get(_memory(tensor)))
            self._show(tensor, found)
        return found

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record one call."""
        kwargs = kwargs or {}
        arguments, options = tree_map_only(Tensor, self.value, (args, kwargs))
        written = list(_written(func, args, kwargs))
        for tensor in written:
            self._keep_as_it_was(tensor)
        result = func(*args, **kwargs)
        operation = self._append(func, arguments, options)
        for tensor in _tensors(result):
            self._add_output(operation, tensor)
        for tensor in written:
            self._mark_overwritten(tensor)
        return result

    def _append(self, function: OpOverload | None, arguments: Any, options: Any) -> Operation:
        flat, _ = tree_flatten((arguments, options))
        inputs = [value for value in flat if isinstance(value, Value)]
        operation = Operation(function, arguments, options, len(self.operations), inputs)
        for value in inputs:
            value.read_by.append(operation)
        self.operations.append(operation)
        return operation

    def _add_output(self, operation: Operation, tensor: Tensor) -> None:
        value = Value(tensor, operation.position, made_by=operation)
        if len(operation.inputs) == 1 and _memory(tensor) == _memory(operation.inputs[0].tensor):
            value.parameter = operation.inputs[0].parameter
        operation.outputs.append(value)
        self._show(tensor, value)

    def _show(self, tensor: Tensor, value: Value) -> None:
        self._values[_key(tensor)] = value
        self._shown.setdefault(_memory(tensor), {})[_key(tensor)] = tensor

    def _keep_as_it_was(self, tensor: Tensor) -> None:
        """Give every value that shows this memory a copy of its own before the memory is written to."""
        for key in self._shown.get(_memory(tensor), {}):
            self._values[key].tensor = self._values[key].tensor.clone()

    def _mark_overwritten(self, tensor: Tensor) -> None:
        """Let every other view of the memory that was written to be a new value."""
        new = self.value(tensor)
        for key, view in list(self._shown[_memory(tensor)].items()):
            if self._values[key] is not new:
                places = {"shown": _place(view), "written": _place(tensor)}
                operation = self._append(None, (self._values[key], new), places)
                self._add_output(operation, view)


def _key(tensor: Tensor) -> _Key:
    offset = int(tensor.storage_offset())
    return _memory(tensor), offset, tuple(tensor.shape), tensor.stride(), tensor.dtype


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _place(tensor: Tensor) -> _Place:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _overwritten(old: Tensor, new: Tensor, *, shown: _Place, written: _Place) -> Tensor:
    """Return what a view at the place `shown`, which was `old`, shows after `new` is at the place `written`."""
    last = max(
        offset + sum(n * s for n, s in zip(*at, strict=True)) for *at, offset in (shown, written)
    )
    memory = new.new_empty(last + 1)
    if 0 not in shown[1]:  # an expanded view shows a number several times
        memory.as_strided(*shown).copy_(old)
    memory.as_strided(*written).copy_(new)
    return memory.as_strided(*shown).clone()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _written(function: OpOverload, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the arguments that a call writes to."""
    for index, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from _tensors(given)
