"""`elf up`, `elf down`, `elf status`: what is told and written without a server, then the whole round with one."""

import http.server
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import yaml
from commands import processes_of
from hypothesis import given
from hypothesis import strategies as st
from prefect_service import ROOT, free_port, wait_until

from elf.flows.background import Background, end, launch, processes_with
from elf.flows.deployments import ENTRYPOINTS, POOL, SET_FOLDER, folder_of, shipped_deployments
from elf.flows.prefect_api import PrefectApi, Unreachable
from elf.flows.service_address import Address, address_in, database_text
from elf.flows.service_choice import choose_server, refuse_another
from elf.flows.service_folder import MARK, Record, Server, ServiceFolder, Worker
from elf.pipeline.config import shipped_names
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.experiment import STAGES

Elf = Callable[..., subprocess.CompletedProcess[str]]
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
NOBODY = Background(pid=2**22 - 1, start=1, boot="another")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceFolder:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / ".elf").mkdir()
    return ServiceFolder(tmp_path)


@contextmanager
def serving(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port of a web server of ours."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def stranger() -> Iterator[int]:
    """The port of a web server that is no Prefect server."""
    with serving(http.server.BaseHTTPRequestHandler) as port:
        yield port


SECRETS = st.text(st.sampled_from("ABCXYZ0189:/?#@%&=[] +"), min_size=3).filter(
    lambda text: any(map(str.isalpha, text))
)


@given(user=SECRETS, password=SECRETS, query=st.sampled_from(["", "?ssl=require", "?password=QQQ"]))
def test_a_database_is_told_without_user_and_password(user: str, password: str, query: str) -> None:
    told = database_text(f"postgresql+asyncpg://{user}:{password}@db.local:5432/prefect{query}")
    assert told in ("PostgreSQL prefect on db.local:5432", "PostgreSQL")
    assert (
        database_text(f"postgresql+asyncpg://elf:secret@db.local:5432/prefect{query}")
        == "PostgreSQL prefect on db.local:5432"
    )


@pytest.mark.parametrize("url", ["postgres://elf:SECRET@db/prefect", "elf:SECRET@db", "", "sqlite:///SECRET"])
def test_a_database_of_another_kind_is_refused_without_telling_it(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"postgresql\+asyncpg://") as refused:
        database_text(url)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("api", "address"),
    [
        ("http://127.0.0.1:4200/api", Address("127.0.0.1", 4200)),
        ("http://localhost:80/api", Address("localhost", 80)),
        ("http://[::1]:4200/api", Address("::1", 4200)),
        ("https://127.0.0.1:4200/api", None),
        ("http://prefect.example.org:4200/api", None),
        ("http://127.0.0.1/api", None),
        ("http://127.0.0.1:4200/elsewhere", None),
        ("http://127.0.0.1:port/api", None),
    ],
)
def test_only_plain_addresses_of_this_machine_are_ours_to_start(api: str, address: Address | None) -> None:
    assert address_in(api) == address
    assert address is None or address.api == api


def test_a_server_on_all_addresses_is_reached_by_the_loopback() -> None:
    assert Address("0.0.0.0", 4300).api == "http://127.0.0.1:4300/api"


def test_a_record_comes_back_as_it_was(folder: ServiceFolder) -> None:
    address = Address("127.0.0.1", 4200)
    server = Server(address.api, "SQLite x", address, Background(1, 2, "boot"))
    record = Record(server, Worker(server.api, "name", None, Background(3, 4, "boot")))
    for each in (
        record,
        replace(record, server=Server(address.api, "its own")),
        replace(record, worker=None),
    ):
        folder.write(each)
        assert folder.read() == each
    folder.write(Record())
    assert folder.read() == Record()
    assert not folder.record.exists()


@pytest.mark.parametrize(
    "text", ["", "{}x", '{"server": {"api": 3}}', '{"worker": {"process": {"pid": "1"}}}']
)
def test_a_damaged_record_is_named(folder: ServiceFolder, text: str) -> None:
    folder.record.write_text(text)
    with pytest.raises(Failed, match=r"services\.json is damaged"):
        folder.read()


def test_settings_of_the_users_own_stay(folder: ServiceFolder) -> None:
    folder.settings.write_text('[api]\nurl = "http://elsewhere/api"\n')
    assert not folder.point_to("http://127.0.0.1:4200/api")
    folder.point_nowhere()
    assert folder.settings.read_text() == '[api]\nurl = "http://elsewhere/api"\n'
    folder.settings.unlink()
    assert folder.point_to("http://127.0.0.1:4200/api")
    assert folder.settings.read_text() == f'{MARK}[api]\nurl = "http://127.0.0.1:4200/api"\n'
    folder.point_nowhere()
    assert not folder.settings.exists()


def test_one_command_at_a_time_works_in_a_folder(folder: ServiceFolder) -> None:
    class WouldWait(Exception):
        pass

    def give_up() -> None:
        raise WouldWait

    with folder.locked(give_up):
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        with pytest.raises(WouldWait), folder.locked(give_up):
            pass
    with folder.locked(give_up):
        pass


def test_a_process_is_known_by_more_than_its_id(tmp_path: Path) -> None:
    mark = {"ELF_TEST_MARK": str(tmp_path)}
    process = launch(
        SLEEP, folder=tmp_path, environment={**os.environ, **mark, "RUN": "7"}, log=tmp_path / "log"
    )
    try:
        assert process.is_alive()
        assert Background.of(process.pid) == process
        assert processes_with(mark, of="RUN") == {process: "7"}
        reused = (replace(process, start=process.start + 1), replace(process, boot="another"))
        end(reused, grace=0)
        assert process.is_alive()
    finally:
        end([process], grace=10)
    assert not process.is_alive()
    assert Background.of(process.pid) is None
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_it_is_known_whose_port_a_port_is() -> None:
    us, other = Background.of(os.getpid()), Background.of(os.getppid())
    assert us is not None
    assert other is not None
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert us.listens_on(port)
        assert not other.listens_on(port)
    assert not us.listens_on(port)


def test_who_does_not_heed_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    log = tmp_path / "log"
    process = launch([sys.executable, "-c", deaf], folder=tmp_path, environment=os.environ, log=log)
    wait_until(lambda: log.read_text() != "", 60, lambda: "it never began")
    end([process], grace=0.2)
    assert not process.is_alive()


def test_what_a_script_starts_with_an_ampersand_heeds_signals_all_the_same(tmp_path: Path) -> None:
    tell = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    log, before = tmp_path / "log", signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        launch([sys.executable, "-c", tell], folder=tmp_path, environment=os.environ, log=log)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    wait_until(lambda: log.read_text() != "", 60, lambda: "it never began")
    assert log.read_text() == "True\n"


def test_the_first_free_port_is_taken_and_the_last_one_before_it(folder: ServiceFolder) -> None:
    chosen = choose_server(Record(), None, None)
    assert not isinstance(chosen, Server)
    first = next(chosen)
    assert first.host == "127.0.0.1"
    assert first.port >= 4200
    assert first.is_free()
    port = free_port()
    last = Address("127.0.0.1", port)
    before = Record(Server(last.api, "SQLite", last, NOBODY))
    chosen = choose_server(before, None, None)
    assert not isinstance(chosen, Server)
    assert next(chosen) == last


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_port_of_somebody_else_is_refused(
    folder: ServiceFolder, stranger: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "environment":
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{stranger}/api")
    with pytest.raises(Failed, match=f"Port {stranger} of 127.0.0.1 is taken"):
        choose_server(Record(), None, stranger if how == "option" else None)


def test_a_server_elsewhere_must_answer(folder: ServiceFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_port()}/elsewhere/api")
    with pytest.raises(Unreachable, match="No Prefect server answers"):
        choose_server(Record(), None, None)


def test_a_host_that_is_not_ours_is_a_wrong_request(folder: ServiceFolder) -> None:
    with pytest.raises(Misconfigured, match="no address of this machine"):
        next(iter(choose_server(Record(), "192.0.2.1", None)))  # type: ignore[call-overload]  # addresses, here


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("0.0.0.0", None, None), "--host 0.0.0.0"),
        ((None, 4300, None), "--port 4300"),
        ((None, None, "PostgreSQL x on y"), "another database"),
        (("127.0.0.1", 4200, "SQLite"), None),
        ((None, None, None), None),
    ],
)
def test_a_server_that_is_up_is_not_changed_in_passing(
    asked: tuple[str | None, int | None, str | None], words: str | None
) -> None:
    address = Address("127.0.0.1", 4200)
    there = Server(address.api, "SQLite", address, NOBODY)
    if words is None:
        refuse_another(there, *asked)
    else:
        with pytest.raises(Failed, match=words):
            refuse_another(there, *asked)


def test_what_answers_must_be_a_prefect_server(stranger: int) -> None:
    assert not PrefectApi(f"http://127.0.0.1:{stranger}/api").answers()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        assert not PrefectApi(f"http://127.0.0.1:{mute.getsockname()[1]}/api").answers(patience=0.2)


def test_a_busy_server_is_asked_again() -> None:
    asked: list[str] = []

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(503 if len(asked) < 3 else 201)
            self.end_headers()
            self.wfile.write(b'{"id": 7}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serving(Busy) as port:
        assert PrefectApi(f"http://127.0.0.1:{port}/api").post("flows/", {"name": "elf"}) == {"id": 7}
    assert asked == ['{"name": "elf"}'] * 3


def test_the_deployment_file_names_exactly_the_shipped_configurations() -> None:
    plain = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    listed = {each["name"]: each for each in plain["deployments"]}
    configs = ROOT / "configs"
    assert sorted(listed) == sorted([*shipped_names(configs), *shipped_names(configs / "ablations")])
    assert len(listed) == len(plain["deployments"])
    deployed = {each.name: each for each in shipped_deployments()}
    assert deployed.keys() == listed.keys()
    for name, each in listed.items():
        assert each["entrypoint"] == ENTRYPOINTS[deployed[name].flow]
        assert each["work_pool"] == {"name": POOL}
        assert each["parameters"] == deployed[name].parameters
    assert folder_of({"pull_steps": plain["pull"]}) == "{{ $ELF_HOME }}"
    assert set(plain["pull"][0]) == {SET_FOLDER}


def test_each_deployment_tells_its_cost_and_its_aim() -> None:
    told = {each.config: each.description for each in shipped_deployments()}
    assert told["owt-full"].startswith("**Time and cost**: 8 GPUs")
    for config, words in told.items():
        assert words.endswith(".")
        assert ("**What varies**: " if config.startswith("ablations/") else "\n\n**Aims at**: ") in words


def test_a_configuration_with_a_sweep_runs_all_its_variants() -> None:
    by_flow = {each.name: each.flow for each in shipped_deployments()}
    assert by_flow["owt-full"] == by_flow["input-guidance"] == "elf"
    assert by_flow["optimiser"] == by_flow["size"] == "elf-sweep"


def test_nothing_up_is_said_and_changes_nothing(elf: Elf, tmp_path: Path) -> None:
    done = elf("down")
    assert (done.returncode, done.stdout) == (0, "Nothing was up in this folder.\n")
    done = elf("status")
    assert done.returncode == 1
    assert "elf up" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_request_that_cannot_be_honoured_leaves_nothing_running(
    elf: Elf, stranger: int, tmp_path: Path
) -> None:
    taken = elf("up", "--port", str(stranger))
    wrong = elf("up", "--database", "mysql://elf:SECRET@db/prefect")
    assert (taken.returncode, wrong.returncode) == (1, 2)
    for done in (taken, wrong):
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        assert "SECRET" not in done.stderr
    assert not (tmp_path / ".elf" / "services.json").exists()
    assert not (tmp_path / "prefect.toml").exists()
    assert not processes_of(tmp_path)


def test_the_flow_takes_the_names_of_all_stages_and_no_others() -> None:
    from elf.flows.flow_parameters import StageName

    assert set(get_args(StageName)) == set(STAGES)
