"""Description of this machine: read from a tree of files as kernels show it, and once from the real one."""

import pytest

from node.observe.host import Host, host_name, nvidia_cards, read_facts, without_serials
from registry.wire import is_node_name

CPU = """processor\t: {n}
model name\t: Quick 9000
physical id\t: {socket}
core id\t\t: {core}

"""


@pytest.fixture
def root(tmp_path):
    """Two sockets of two cores with two threads each, one SSD, one spinning disk, one graphics card."""
    files = {
        "etc/os-release": 'ID=debian\nVERSION_ID="13"\n',
        "proc/cpuinfo": "".join(CPU.format(n=n, socket=n // 4, core=n % 4 // 2) for n in range(8)),
        "proc/meminfo": "MemTotal:       16384 kB\nMemAvailable:    8192 kB\n",
        "sys/block/nvme0n1/size": "2048\n",
        "sys/block/nvme0n1/queue/rotational": "0\n",
        "sys/block/nvme0n1/device/model": "Fast One  \n",
        "sys/block/nvme0n1/device/serial": "SECRET1\n",
        "sys/block/sda/size": "4096\n",
        "sys/block/sda/queue/rotational": "1\n",
        "sys/block/loop0/size": "8\n",
        "sys/block/sr0/size": "8\n",
        "sys/class/drm/card0/device/vendor": "0x1002\n",
        "sys/class/drm/card0/device/device": "0x744c\n",
        "sys/class/drm/card0/device/mem_info_vram_total": "1073741824\n",
        "sys/class/drm/card0/device/gpu_busy_percent": "7\n",
        "sys/class/drm/card0-HDMI-A-1/status": "connected\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_threads_are_counted_by_socket_and_core(root):
    processor = {"model_name": "Quick 9000", "total_cores": 2, "total_threads": 4}
    assert read_facts(root)["cpu"] == [processor, processor]


def test_memory_is_in_bytes(root):
    assert read_facts(root)["memory"]["total_physical_bytes"] == 16 * 1024 * 1024


def test_disks_are_listed_but_loop_devices_and_optical_drives_are_not(root):
    fast, slow = read_facts(root)["disk"]
    assert fast == {
        "drive_type": "SSD",
        "size_bytes": 1024 * 1024,
        "model": "Fast One",
        "serial_number": "SECRET1",
    }
    assert slow["drive_type"] == "HDD"


def test_serial_numbers_can_be_left_out(root):
    assert [disk["serial_number"] for disk in without_serials(read_facts(root))["disk"]] == ["", ""]


def test_the_operating_system_is_named(root):
    facts = read_facts(root)["os"]
    assert facts["platform"] == "debian"
    assert facts["platform_version"] == "13"
    assert facts.keys() == {
        "os",
        "platform",
        "platform_family",
        "platform_version",
        "kernel_version",
        "kernel_arch",
    }


def test_a_machine_that_shows_nothing_has_nothing(tmp_path):
    facts = read_facts(tmp_path)
    assert (facts["cpu"], facts["disk"], facts["memory"]["total_physical_bytes"]) == ([], [], 0)


def test_nvidia_cards_are_read_from_the_output_of_nvidia_smi():
    table = (
        "NVIDIA H200, 143771, 512, 3, 570.86\nNVIDIA A2, [N/A], [N/A], [N/A], 570.86\nnonsense\n"
    )
    first, second = nvidia_cards(table)
    assert first == {
        "vendor": "NVIDIA",
        "product": "NVIDIA H200",
        "vram_total_bytes": 143_771 * 1024 * 1024,
        "vram_used_bytes": 512 * 1024 * 1024,
        "utilization_percent": 3,
        "driver": "570.86",
    }
    assert second["vram_total_bytes"] == 0


async def test_the_machine_is_looked_at_again_only_after_some_seconds(root):
    clock = [0.0]
    host = Host(root=root, now=lambda: clock[0])
    await host.facts()
    (root / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    assert (await host.facts())["memory"]["total_physical_bytes"] == 16 * 1024 * 1024
    clock[0] = 6.0
    assert (await host.facts())["memory"]["total_physical_bytes"] == 1024


async def test_the_real_machine_has_processors_and_memory():
    facts = await Host().facts()
    assert sum(socket["total_threads"] for socket in facts["cpu"]) >= 1
    assert facts["memory"]["total_physical_bytes"] > 0


def test_the_name_of_the_host_is_valid_for_a_node_or_empty() -> None:
    assert is_node_name(host_name() or "nameless")
