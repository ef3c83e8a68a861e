"""What is committed names no machine of ours: its known values are replaced, and nothing else is."""

import nbformat
import pytest
import this_machine
from tell_boxes import code, markdown, printed
from this_machine import known_values, replace_in_notebook, replaced

KNOWN = {"/home/ottoline/casebook": "CHECKOUT", "quokka-17.lab": "HOST", "quokka-17": "HOST"}
KNOWN |= {"ottoline": "USER", "10.44.3.19": "ADDRESS"}


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("ottoline@quokka-17:~$ ls", "USER@HOST:~$ ls"),
        ("at quokka-17.lab, 10.44.3.19:22", "at HOST, ADDRESS:22"),
        ("/home/ottoline/casebook/helpers/cli.py", "CHECKOUT/helpers/cli.py"),
        ("/home/ottoline/other", "/home/USER/other"),
        ("ottolines and 110.44.3.19 and 10.44.3.190", "ottolines and 110.44.3.19 and 10.44.3.190"),
        ("quokka-17b, my-quokka-17", "quokka-17b, my-quokka-17"),
        ("61.27 GiB at 0000:c5:00.0", "61.27 GiB at 0000:c5:00.0"),
        ("the host is quokka-17.", "the host is HOST."),
    ],
)
def test_a_known_value_is_replaced_where_it_stands_as_a_word(text, clean):
    assert replaced(text, KNOWN) == clean


def test_sources_and_outputs_of_a_notebook_are_cleaned_and_the_count_is_right():
    cells = [markdown("by ottoline"), code("x = 1", printed("on quokka-17\n")), code("y = 2")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    assert replace_in_notebook(notebook, KNOWN) == 2
    assert notebook.cells[0].source == "by USER"
    assert notebook.cells[1].outputs[0].text == "on HOST\n"
    assert replace_in_notebook(notebook, KNOWN) == 0
    nbformat.validate(notebook)


def test_this_machine_knows_its_host_its_home_and_its_checkout_and_no_word_that_all_have(
    monkeypatch,
):
    monkeypatch.setattr(this_machine.socket, "gethostname", lambda: "quokka-17")
    monkeypatch.setattr(this_machine.getpass, "getuser", lambda: "root")
    known = known_values()
    assert known["quokka-17"] == "HOST"
    assert known[str(this_machine.ROOT)] == "CHECKOUT"
    assert not known.keys() & this_machine.EVERYWHERE
    assert list(known) == sorted(known, key=len, reverse=True)
