"""Mistakes in the package, to see that a test notices them."""

import importlib
import inspect
import types


def seed_mistake(module_name, right, wrong, monkeypatch):
    """Give every function of a module the code it would have with one piece of its text replaced."""
    module = importlib.import_module(module_name)
    text = inspect.getsource(module)
    assert text.count(right) == 1, f"{module_name} has {text.count(right)} places that say: {right}"
    mutant = types.ModuleType(module_name)
    exec(compile(text.replace(right, wrong), module.__file__, "exec"), mutant.__dict__)
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module_name and name != "host_readable":
            monkeypatch.setattr(function, "__code__", getattr(mutant, name).__code__)
