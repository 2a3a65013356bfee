"""A control beyond the guard is told as a control, a model's row as degenerate."""

from elf.stages.guards import is_control, say_fault


def test_who_made_the_texts_tells_what_is_said() -> None:
    assert is_control({"samples": {"stage": "control"}})
    assert not is_control({"samples": {"stage": "sample"}})
    assert not is_control({})
    fault = "Gen-PPL above 300"
    assert say_fault("ode, sde", fault, control=False, several=True) == f"ode, sde are degenerate: {fault}"
    assert say_fault("unigram", fault, control=True) == f"unigram (control) is beyond the guard: {fault}"
    both = say_fault("replaced, unigram", fault, control=True, several=True)
    assert both == f"replaced, unigram (controls) are beyond the guard: {fault}"
