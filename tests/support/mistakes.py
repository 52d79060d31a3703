"""Mistakes in the package, to see that a test notices them."""

import importlib
import inspect
import types


def with_mistake(module_name, right, wrong):
    """A module with one piece of its text replaced, wherever it stands."""
    module = importlib.import_module(module_name)
    text = inspect.getsource(module)
    assert right in text, f"{module_name} does not say: {right}"
    mutant = types.ModuleType(module_name)
    exec(compile(text.replace(right, wrong), module.__file__, "exec"), mutant.__dict__)
    return mutant


def seed_mistake(module_name, right, wrong, monkeypatch):
    """Give every function and method of a module the code it would have with one piece of its text replaced."""
    module = importlib.import_module(module_name)
    count = inspect.getsource(module).count(right)
    assert count == 1, f"{module_name} has {count} places that say: {right}"
    mutant = with_mistake(module_name, right, wrong)
    classes = [name for name, kind in inspect.getmembers(module, inspect.isclass) if kind.__module__ == module_name]
    for own, other in [(module, mutant), *((getattr(module, name), getattr(mutant, name)) for name in classes)]:
        for name, function in vars(own).items():
            is_own = isinstance(function, types.FunctionType) and function.__module__ == module_name
            if is_own and name != "host_readable":
                monkeypatch.setattr(function, "__code__", vars(other)[name].__code__)
