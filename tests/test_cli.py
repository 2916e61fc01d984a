import json
import subprocess
import sys

import pytest

from lengthgen import reproduce
from lengthgen.cli import main
from lengthgen.experiments import NAMES, get
from lengthgen.results import Result

QUICK = ["--profile", "quick", "--jobs", "1"]


@pytest.fixture
def refuse(capsys):
    """Run a command that must fail: one line on standard error, nothing else, exit code 2."""

    def refuse(*arguments):
        assert main([str(a) for a in arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("lengthgen: ")
        assert "Traceback" not in captured.err
        return captured.err

    return refuse


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -- bad input: one line, exit code 2, nothing overwritten ---------------------------------------


def test_an_unknown_experiment_is_refused_with_those_that_exist(refuse, tmp_path):
    message = refuse("reproduce", "baze", *QUICK, "--out", tmp_path / "out")
    assert "'baze'" in message and all(name in message for name in NAMES)
    assert not (tmp_path / "out").exists()


def test_an_unknown_profile_is_refused_with_those_that_exist(refuse, tmp_path):
    message = refuse("reproduce", "base", "--profile", "fast", "--out", tmp_path / "out")
    assert "'fast'" in message and "quick, paper" in message


@pytest.mark.parametrize("seeds", [0, -3])
def test_fewer_than_one_seed_is_refused(refuse, tmp_path, seeds):
    message = refuse("reproduce", "base", *QUICK, "--seeds", seeds, "--out", tmp_path / "out")
    assert f"seeds={seeds}" in message and "at least 1" in message


@pytest.mark.parametrize("jobs", [0, -1])
def test_fewer_than_one_job_is_refused(refuse, tmp_path, jobs):
    arguments = ("--profile", "quick", "--jobs", jobs, "--out", tmp_path / "out")
    message = refuse("reproduce", "base", *arguments)
    assert f"jobs={jobs}" in message and "at least 1" in message
    assert not list((tmp_path / "out").glob("base*"))


def test_a_number_that_is_none_is_refused(capsys, tmp_path):
    assert main(["reproduce", "base", "--seeds", "many", "--out", str(tmp_path)]) == 2
    assert "invalid int value: 'many'" in capsys.readouterr().err


@pytest.mark.parametrize("folder", ["/proc/lengthgen/out", "file", "file/below"])
def test_an_output_folder_that_cannot_be_written_is_refused(refuse, tmp_path, folder):
    (tmp_path / "file").write_text("kept")
    out = tmp_path / folder
    message = refuse("reproduce", "base", *QUICK, "--out", out)
    assert "cannot write" in message and str(out) in message
    assert (tmp_path / "file").read_text() == "kept"


def test_a_cache_that_cannot_be_written_is_refused(tiny_base, monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LENGTHGEN_CACHE", str(tmp_path / "file"))
    out = tmp_path / "out"
    assert main(["reproduce", "base", *QUICK, "--out", str(out)]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "cannot write" in message and str(tmp_path / "file") in message
    assert not list(out.iterdir())


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"schema_version": 1}'])
def test_a_damaged_result_is_refused_and_kept(refuse, done, damage):
    (done / "base.json").write_bytes(damage)
    before = content(done)
    message = refuse("reproduce", "base", *QUICK, "--out", done)
    assert "base.json is damaged" in message and "`lengthgen reproduce base --fresh`" in message
    assert content(done) == before


def test_a_result_of_another_schema_is_refused_and_kept(refuse, done, edit_json):
    edit_json(done / "base.json", schema_version=7)
    before = content(done)
    message = refuse("reproduce", "base", *QUICK, "--out", done)
    assert "schema version 7" in message and "reads 1" in message
    assert content(done) == before


def test_a_result_of_another_configuration_is_refused_and_kept(refuse, done):
    before = content(done)
    message = refuse("reproduce", "base", *QUICK, "--seeds", 2, "--out", done)
    assert "n_seeds = 1, not 2" in message and "--fresh" in message and "--out" in message
    assert content(done) == before


def test_a_result_of_another_profile_is_refused_and_kept(refuse, done):
    before = content(done)
    message = refuse("reproduce", "base", "--profile", "paper", "--out", done)
    assert "profile quick, not paper" in message
    assert content(done) == before


def test_a_result_whose_configuration_has_another_field_is_refused(refuse, done, edit_json):
    config = json.loads((done / "base.json").read_text())["config"]
    edit_json(done / "base.json", config=config | {"depth": 3})
    assert "another configuration" in refuse("reproduce", "base", *QUICK, "--out", done)


def test_a_damaged_result_beside_the_one_asked_for_stops_before_anything_is_written(refuse, done):
    (done / "prop1.json").write_text("{")
    (done / "base.png").unlink()  # so that base would be computed again
    before = content(done)
    for flags in ((), ("--fresh",)):  # which is about base alone
        message = refuse("reproduce", "base", *QUICK, *flags, "--out", done)
        assert "prop1.json is damaged" in message and "reproduce prop1 --fresh" in message
        assert content(done) == before


def test_fresh_replaces_what_is_damaged_or_foreign(done, edit_json, capsys):
    rows = Result.load(done / "base.json").rows
    for damage in ("{", '{"schema_version": 7}'):
        (done / "base.json").write_text(damage)
        assert main(["reproduce", "base", *QUICK, "--fresh", "--out", str(done)]) == 0
        assert Result.load(done / "base.json").rows == rows
    edit_json(done / "base.json", profile="paper")
    assert main(["reproduce", "base", *QUICK, "--fresh", "--out", str(done)]) == 0
    assert Result.load(done / "base.json").profile == "quick"


# -- what a command does -------------------------------------------------------------------------


def test_reproduce_writes_what_the_design_says(done, private_cache):
    assert set(content(done)) == {"base.json", "base.png", "base.log", "RESULTS.md"}
    assert (done / "base.png").read_bytes().startswith(b"\x89PNG")
    assert "accuracy_rows" in (done / "base.log").read_text()
    page = (done / "RESULTS.md").read_text()
    assert "[base](base.json)" in page and "gap.rotary" in page
    kinds = {path.suffix for path in private_cache.rglob("*") if path.is_file()}
    assert kinds == {".safetensors"}  # no pickle


def test_a_run_writes_what_was_written_before(done):
    before = content(done)
    for path in done.iterdir():
        path.unlink()
    assert main(["reproduce", "base", *QUICK, "--out", str(done)]) == 0
    assert content(done) == before


def test_a_complete_result_is_kept(done, capsys):
    before = content(done)
    assert main(["reproduce", "base", *QUICK, "--out", str(done)]) == 0
    assert "complete" in capsys.readouterr().out
    assert content(done) == before


@pytest.mark.parametrize("end", ["png", "log"])
def test_a_missing_picture_or_log_is_made_again(done, end):
    (done / f"base.{end}").unlink()
    assert main(["reproduce", "base", *QUICK, "--out", str(done)]) == 0
    assert (done / f"base.{end}").exists()


def test_a_result_of_older_code_is_replaced(done, edit_json, capsys):
    old = Result.load(done / "base.json")
    edit_json(done / "base.json", environment=old.environment | {"code": "old"}, rows=[])
    assert main(["reproduce", "base", *QUICK, "--out", str(done)]) == 0
    assert Result.load(done / "base.json").rows == old.rows


@pytest.mark.parametrize(("kept", "now"), [("cuda", None), (None, "cuda")])
def test_a_result_of_another_device_is_computed_again(done, edit_json, monkeypatch, kept, now):
    def with_device(values, device):
        return values | ({"device": device} if device else {})

    here = reproduce.environment("lengthgen.experiments.base")
    edit_json(done / "base.json", environment=with_device(here, kept))
    for device, is_kept in ((kept, True), (now, False)):
        monkeypatch.setattr(reproduce, "environment", lambda _, d=device: with_device(here, d))
        found = reproduce._kept(get("base"), "quick", done, None)
        assert (found is not None) == is_kept


def test_ctrl_c_says_how_to_go_on(tiny_base, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("lengthgen.experiments.experiment.computed", interrupted)
    assert main(["reproduce", "base", *QUICK, "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_a_module_run_by_name_ends_with_the_exit_code(tmp_path):
    command = [sys.executable, "-m", "lengthgen", "reproduce", "baze", "--out", str(tmp_path / "x")]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 2
    assert child.stdout == "" and child.stderr.count("\n") == 1
    assert child.stderr.startswith("lengthgen: unknown experiment 'baze'")


@pytest.mark.parametrize("arguments", [[], ["reproduse"], ["claims", "--jsn"]])
def test_an_unknown_command_or_flag_is_exit_code_2(arguments, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("lengthgen: ") and error.count("\n") == 1


def test_help_and_version(capsys):
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as stop:
            main([flag])
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "reproduce" in out and "claims" in out
