"""Command lines that people wrote for PopRun must mean the same here.

They come from the vendor's guide and from public example programs; variables of the
shell are filled in.
"""

import shlex

import pytest

from poprun.options.grammar import parse
from poprun.options.settings import resolve_settings
from poprun.output.selection import Selection


def meaning(line: str) -> tuple[dict[str, object], list[str]]:
    """Return what a line for the shell gives, and the program's words."""
    command, *words = shlex.split(line.replace("\\\n", ""))
    assert command == "poprun"
    parsed = parse(words)
    settings = resolve_settings(parsed.options, {})
    given: dict[str, object] = {
        name: setting.value
        for name, setting in settings.entries.items()
        if settings.is_given(name) and name not in ("verbose", "vv")
    }
    if settings.verbosity:
        given["verbosity"] = settings.verbosity
    return given, list(parsed.program)


GUIDE = {
    "check": (
        "poprun --num-instances 2 --num-replicas 2 --offline-mode=1 "
        'echo "Hello world!"',
        {"num-instances": 2, "num-replicas": 2, "offline-mode": True},
        ["echo", "Hello world!"],
    ),
    "single instance": (
        "poprun --numa-aware=yes --vipu-server-host=10.3.7.150 --vipu-partition=P8 "
        '--vipu-cluster=A8 --mpi-global-args="--tag-output" '
        "--num-replicas=4 --num-instances=1 python3 train.py",
        {
            "numa-aware": True,
            "vipu-server-host": "10.3.7.150",
            "vipu-partition": "P8",
            "vipu-cluster": "A8",
            "mpi-global-args": ("--tag-output",),
            "num-replicas": 4,
            "num-instances": 1,
        },
        ["python3", "train.py"],
    ),
    "single host": (
        "poprun --numa-aware=yes --vipu-server-host=10.3.7.150 --vipu-partition=A8 "
        '--vipu-cluster=A8 --mpi-global-args="--tag-output" '
        "--num-replicas=8 --num-instances=2 python3 train.py",
        {
            "numa-aware": True,
            "vipu-server-host": "10.3.7.150",
            "vipu-partition": "A8",
            "vipu-cluster": "A8",
            "mpi-global-args": ("--tag-output",),
            "num-replicas": 8,
            "num-instances": 2,
        },
        ["python3", "train.py"],
    ),
    "several hosts": (
        "poprun --host 10.3.7.153,10.3.7.154 --numa-aware=yes "
        "--vipu-server-host=10.3.7.150 --vipu-partition=P8 "
        '--vipu-cluster=A8 --num-ilds=1 --mpi-global-args="--tag-output" '
        '--mpi-local-args="-x PYTHONPATH" '
        "--num-replicas=8 --num-instances=2 python3 train.py",
        {
            "host": "10.3.7.153,10.3.7.154",
            "numa-aware": True,
            "vipu-server-host": "10.3.7.150",
            "vipu-partition": "P8",
            "vipu-cluster": "A8",
            "num-ilds": 1,
            "mpi-global-args": ("--tag-output",),
            "mpi-local-args": ("-x PYTHONPATH",),
            "num-replicas": 8,
            "num-instances": 2,
        },
        ["python3", "train.py"],
    ),
    "several pods": (
        "poprun --host 10.3.7.153,10.3.8.153 --numa-aware=yes "
        "--vipu-server-host=10.3.7.150 --vipu-partition=P8 --vipu-cluster=P8 "
        '--num-ilds=2 --mpi-global-args="--tag-output" '
        '--mpi-local-args="-x PYTHONPATH" '
        "--num-replicas=8 --num-instances=2 python3 train.py",
        {
            "host": "10.3.7.153,10.3.8.153",
            "numa-aware": True,
            "vipu-server-host": "10.3.7.150",
            "vipu-partition": "P8",
            "vipu-cluster": "P8",
            "num-ilds": 2,
            "mpi-global-args": ("--tag-output",),
            "mpi-local-args": ("-x PYTHONPATH",),
            "num-replicas": 8,
            "num-instances": 2,
        },
        ["python3", "train.py"],
    ),
    "listing 4.3": (
        "poprun --vipu-partition=MyPartition --vipu-server-host=127.0.0.1 "
        "--num-replicas=4 --num-instances=1 --numa-aware=yes -v python main.py",
        {
            "vipu-partition": "MyPartition",
            "vipu-server-host": "127.0.0.1",
            "num-replicas": 4,
            "num-instances": 1,
            "numa-aware": True,
            "verbosity": 1,
        },
        ["python", "main.py"],
    ),
    "a variable": (
        'poprun --mpi-local-args="-x POPLAR_ENGINE_OPTIONS=VALUE" a',
        {"mpi-local-args": ("-x POPLAR_ENGINE_OPTIONS=VALUE",)},
        ["a"],
    ),
    "a forwarded variable": (
        'poprun --mpi-local-args="-x POPLAR_ENGINE_OPTIONS" a',
        {"mpi-local-args": ("-x POPLAR_ENGINE_OPTIONS",)},
        ["a"],
    ),
    "files": (
        'poprun --mpi-global-args="--output-filename output" a',
        {"mpi-global-args": ("--output-filename output",)},
        ["a"],
    ),
}

OBSERVED = {
    "tutorial": (
        "poprun \\\n  --num-replicas 8 \\\n  --num-instances 4 \\\n"
        "  --ipus-per-replica 2 \\\npython main.py \\\n  --batch-size 64 \\\n"
        "  --gradient-accumulation 8 \\\n  --device-iterations 4 \\\n"
        "  --eight-bit-io \\\n  --async-dataloader",
        {"num-replicas": 8, "num-instances": 4, "ipus-per-replica": 2},
        [
            "python",
            "main.py",
            "--batch-size",
            "64",
            "--gradient-accumulation",
            "8",
            "--device-iterations",
            "4",
            "--eight-bit-io",
            "--async-dataloader",
        ],
    ),
    "offline test": (
        "poprun --offline-mode=on --num-instances 4 --num-replicas 4 "
        "--mpi-global-args=--allow-run-as-root python3 test.py --tmpdir /tmp/x",
        {
            "offline-mode": True,
            "num-instances": 4,
            "num-replicas": 4,
            "mpi-global-args": ("--allow-run-as-root",),
        },
        ["python3", "test.py", "--tmpdir", "/tmp/x"],
    ),
    "a value of two words": (
        "poprun --mpi-global-args --tag-output --num-replicas 4 --num-instances 2 "
        "python3 popdist_training.py",
        {
            "mpi-global-args": ("--tag-output",),
            "num-replicas": 4,
            "num-instances": 2,
        },
        ["python3", "popdist_training.py"],
    ),
    "one instance": (
        "poprun -vv --num-instances=1 --num-replicas=4 "
        "--executable-cache-path=/tmp/c python3 train.py --config resnet50-pod4",
        {
            "verbosity": 2,
            "num-instances": 1,
            "num-replicas": 4,
            "executable-cache-path": "/tmp/c",
        },
        ["python3", "train.py", "--config", "resnet50-pod4"],
    ),
    "as root": (
        "poprun --allow-run-as-root 1 --vv --num-instances 1 --num-replicas 16 "
        '--mpi-global-args="--tag-output" --ipus-per-replica 4 '
        "python3 run_pretraining.py",
        {
            "allow-run-as-root": True,
            "verbosity": 2,
            "num-instances": 1,
            "num-replicas": 16,
            "mpi-global-args": ("--tag-output",),
            "ipus-per-replica": 4,
        },
        ["python3", "run_pretraining.py"],
    ),
    "popxl": (
        "poprun --vipu-partition popxl_test --update-partition yes --num-replicas 2 "
        "--num-instances 2 --print-topology yes python model.py",
        {
            "vipu-partition": "popxl_test",
            "update-partition": True,
            "num-replicas": 2,
            "num-instances": 2,
            "print-topology": True,
        },
        ["python", "model.py"],
    ),
    "two ILDs": (
        "poprun -vv --remove-partition=0 --num-instances 2 --num-replicas 16 "
        "--num-ilds=2 --ipus-per-replica 8 --numa-aware=yes --host H0,H1 "
        "--vipu-server-host=S --vipu-server-timeout=600 --vipu-partition=P "
        "--vipu-cluster=C --reset-partition=yes --update-partition=yes "
        '--mpi-global-args="--tag-output --allow-run-as-root '
        "--mca oob_tcp_if_include 10.10.0.0/16 "
        '--mca btl_tcp_if_include 10.10.0.0/16" '
        '--mpi-local-args="-x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH" '
        "python3 bert.py",
        {
            "verbosity": 2,
            "remove-partition": False,
            "num-instances": 2,
            "num-replicas": 16,
            "num-ilds": 2,
            "ipus-per-replica": 8,
            "numa-aware": True,
            "host": "H0,H1",
            "vipu-server-host": "S",
            "vipu-server-timeout": 600,
            "vipu-partition": "P",
            "vipu-cluster": "C",
            "reset-partition": True,
            "update-partition": True,
            "mpi-global-args": (
                "--tag-output --allow-run-as-root "
                "--mca oob_tcp_if_include 10.10.0.0/16 "
                "--mca btl_tcp_if_include 10.10.0.0/16",
            ),
            "mpi-local-args": ("-x LD_LIBRARY_PATH -x OPAL_PREFIX -x PATH",),
        },
        ["python3", "bert.py"],
    ),
    "allocation": (
        "poprun -vv --num-instances=8 --num-replicas=64 --vipu-allocation=A "
        "--update-partition=yes --remove-partition=yes --reset-partition=no "
        "--sync-type=ST_POD_NATIVE_DEFAULT --executable-cache-path=/c "
        "python3 train.py",
        {
            "verbosity": 2,
            "num-instances": 8,
            "num-replicas": 64,
            "vipu-allocation": "A",
            "update-partition": True,
            "remove-partition": True,
            "reset-partition": False,
            "sync-type": "pod-native-default",
            "executable-cache-path": "/c",
        },
        ["python3", "train.py"],
    ),
    "repeated": (
        "poprun --num-replicas 4 --num-instances 2 --ipus-per-replica 1 "
        "--process-placement=disabled --mpi-global-args=--tag-output "
        "--mpi-global-args=--allow-run-as-root python test.py",
        {
            "num-replicas": 4,
            "num-instances": 2,
            "ipus-per-replica": 1,
            "process-placement": "disabled",
            "mpi-global-args": ("--tag-output", "--allow-run-as-root"),
        },
        ["python", "test.py"],
    ),
    "one instance's own": (
        "poprun --num-instances=2 --num-replicas=2 "
        '--instance-mpi-local-args=0:"-x PADDLE_TRAINER_ID=0 -x PADDLE_RANK=0" '
        '--instance-mpi-local-args=1:"-x PADDLE_TRAINER_ID=1 -x PADDLE_RANK=1" '
        "python train.py",
        {
            "num-instances": 2,
            "num-replicas": 2,
            "instance-mpi-local-args": (
                (0, "-x PADDLE_TRAINER_ID=0 -x PADDLE_RANK=0"),
                (1, "-x PADDLE_TRAINER_ID=1 -x PADDLE_RANK=1"),
            ),
        },
        ["python", "train.py"],
    ),
    "a README's prefix": (
        "poprun --num-instance 2 --num-replicas 4 --numa-aware 1 python train.py",
        {"num-instances": 2, "num-replicas": 4, "numa-aware": True},
        ["python", "train.py"],
    ),
    "resnet50 on one pod": (
        'poprun --mpi-global-args="--allow-run-as-root --tag-output" '
        "--num-instances=4 --numa-aware=yes --num-replicas=4 --ipus-per-replica=4 "
        "python3 train.py --config resnet50_mk2_pipelined",
        {
            "mpi-global-args": ("--allow-run-as-root --tag-output",),
            "num-instances": 4,
            "numa-aware": True,
            "num-replicas": 4,
            "ipus-per-replica": 4,
        },
        ["python3", "train.py", "--config", "resnet50_mk2_pipelined"],
    ),
    "resnet50 on four": (
        r"""poprun -vv --num-instances=16 --num-replicas=16 \
       --ipus-per-replica=4 \
       --vipu-server-host=10.1.3.101 \
       --host=10.1.3.101,10.1.3.102\
       --vipu-server-port 8090 \
       --num-ilds=1 \
       --vipu-partition=p64 \
       --numa-aware=yes \
       --update-partition=yes \
       --remove-partition=no \
       --reset-partition=no \
       --print-topology=yes \
       --executable-cache-path cache/rn50_pod64 \
       --mpi-global-args="--tag-output \
                          --allow-run-as-root \
                          --mca btl_tcp_if_include eno1" \
       --mpi-local-args="-x LD_LIBRARY_PATH \
                         -x IPUOF_VIPU_API_TIMEOUT=800" \
python3 train.py --config resnet50_mk2_pipelined_pod64""",
        {
            "verbosity": 2,
            "num-instances": 16,
            "num-replicas": 16,
            "ipus-per-replica": 4,
            "vipu-server-host": "10.1.3.101",
            "host": "10.1.3.101,10.1.3.102",
            "vipu-server-port": 8090,
            "num-ilds": 1,
            "vipu-partition": "p64",
            "numa-aware": True,
            "update-partition": True,
            "remove-partition": False,
            "reset-partition": False,
            "print-topology": True,
            "executable-cache-path": "cache/rn50_pod64",
            "mpi-global-args": (
                "--tag-output                           --allow-run-as-root"
                "                           --mca btl_tcp_if_include eno1",
            ),
            "mpi-local-args": (
                "-x LD_LIBRARY_PATH                          "
                "-x IPUOF_VIPU_API_TIMEOUT=800",
            ),
        },
        ["python3", "train.py", "--config", "resnet50_mk2_pipelined_pod64"],
    ),
    "empty settings": (
        'poprun --num-instances 4 --mpi-global-args="" --mpi-local-args="" '
        "python run_pretraining.py --config c.json",
        {"num-instances": 4, "mpi-global-args": ("",), "mpi-local-args": ("",)},
        ["python", "run_pretraining.py", "--config", "c.json"],
    ),
    "quotes within quotes": (
        'poprun -vv --num-instances=2 --mpi-local-args="-x '
        "TF_CPP_VMODULE='poplar_compiler=0, poplar_executor=0' -x PATH\" "
        "python run_pretraining.py --train-file '/data/*.tfrecord'",
        {
            "verbosity": 2,
            "num-instances": 2,
            "mpi-local-args": (
                "-x TF_CPP_VMODULE='poplar_compiler=0, poplar_executor=0' -x PATH",
            ),
        },
        ["python", "run_pretraining.py", "--train-file", "/data/*.tfrecord"],
    ),
    "resnet50 for MLPerf": (
        "poprun -vv --host 10.1.3.101 --mpi-global-args=--tag-output "
        '--num-instances "8" --num-replicas "16" '
        "python validation.py --restore-path logs --epochs 45",
        {
            "verbosity": 2,
            "host": "10.1.3.101",
            "mpi-global-args": ("--tag-output",),
            "num-instances": 8,
            "num-replicas": 16,
        },
        ["python", "validation.py", "--restore-path", "logs", "--epochs", "45"],
    ),
    "cluster GCN": (
        """poprun
      --mpi-global-args="--tag-output"
      --num-replicas=4
      --num-instances=4
      --executable-cache-path=/tmp/tf_cache/
    python3 run_cluster_gcn.py
      configs/train_ppi.json
      --training.replicas 4
      --do-test false""",
        {
            "mpi-global-args": ("--tag-output",),
            "num-replicas": 4,
            "num-instances": 4,
            "executable-cache-path": "/tmp/tf_cache/",
        },
        [
            "python3",
            "run_cluster_gcn.py",
            "configs/train_ppi.json",
            "--training.replicas",
            "4",
            "--do-test",
            "false",
        ],
    ),
    "frozen in time": (
        """poprun
      -vv
      --num-instances 1
      --num-replicas 1
      --ipus-per-replica 8
      --vipu-partition p16
      --vipu-cluster c16
      --vipu-server-host 10.1.3.101
      --executable-cache-path ./exps/exe_cache
    python run.py
      --timestamp_ckpt False
      --load_checkpoint ""
    """,
        {
            "verbosity": 2,
            "num-instances": 1,
            "num-replicas": 1,
            "ipus-per-replica": 8,
            "vipu-partition": "p16",
            "vipu-cluster": "c16",
            "vipu-server-host": "10.1.3.101",
            "executable-cache-path": "./exps/exe_cache",
        },
        ["python", "run.py", "--timestamp_ckpt", "False", "--load_checkpoint", ""],
    ),
    "bert": (
        """poprun
         --vv
         --num-instances 1
         --num-replicas 16
         --update-partition=yes
         --remove-partition=yes
         --reset-partition=no
         --sync-type=ST_POD_NATIVE_DEFAULT
         --vipu-server-timeout 300
         --vipu-server-host 10.1.3.101
         --vipu-partition=p64
         --vipu-cluster=c64
         --ipus-per-replica 4
         --mpi-global-args="
         --mca oob_tcp_if_include eno1
         --mca btl_tcp_if_include eno1"
         --mpi-local-args="
         -x OPAL_PREFIX
         -x IPUOF_VIPU_API_TIMEOUT=600
         -x POPLAR_TARGET_OPTIONS"
      python3 bert.py
         --config pretrain_large_128
         --replication-factor 16""",
        {
            "verbosity": 2,
            "num-instances": 1,
            "num-replicas": 16,
            "update-partition": True,
            "remove-partition": True,
            "reset-partition": False,
            "sync-type": "pod-native-default",
            "vipu-server-timeout": 300,
            "vipu-server-host": "10.1.3.101",
            "vipu-partition": "p64",
            "vipu-cluster": "c64",
            "ipus-per-replica": 4,
            "mpi-global-args": (
                "\n         --mca oob_tcp_if_include eno1"
                "\n         --mca btl_tcp_if_include eno1",
            ),
            "mpi-local-args": (
                "\n         -x OPAL_PREFIX\n         -x IPUOF_VIPU_API_TIMEOUT=600"
                "\n         -x POPLAR_TARGET_OPTIONS",
            ),
        },
        [
            "python3",
            "bert.py",
            "--config",
            "pretrain_large_128",
            "--replication-factor",
            "16",
        ],
    ),
    "squad": (
        """poprun
         -vv
         --num-instances 1
         --num-replicas 2
         --num-ilds=1
         --ipus-per-replica 8
         --vipu-server-host=10.1.3.101
         --vipu-partition=p16
         --vipu-cluster=c16
         --update-partition=yes
         --remove-partition=yes
         --reset-partition=no
         --sync-type=ST_POD_NATIVE_DEFAULT
         --print-topology=yes
      python3 bert.py
         --config configs/squad_large_384.json""",
        {
            "verbosity": 2,
            "num-instances": 1,
            "num-replicas": 2,
            "num-ilds": 1,
            "ipus-per-replica": 8,
            "vipu-server-host": "10.1.3.101",
            "vipu-partition": "p16",
            "vipu-cluster": "c16",
            "update-partition": True,
            "remove-partition": True,
            "reset-partition": False,
            "sync-type": "pod-native-default",
            "print-topology": True,
        },
        ["python3", "bert.py", "--config", "configs/squad_large_384.json"],
    ),
    "hosts of a cluster": (
        "poprun -H node[0-2,4] --num-instances=4 --num-replicas 4 "
        "--host-subnet=10.5.0.0/16 --synchronise-python-venv=yes "
        "--synchronise-poplar-sdk no --distribute-ssh-key 1 "
        "--only-output-from-instance 0 python train.py",
        {
            "host": "node[0-2,4]",
            "num-instances": 4,
            "num-replicas": 4,
            "host-subnet": "10.5.0.0/16",
            "synchronise-python-venv": True,
            "synchronise-poplar-sdk": False,
            "distribute-ssh-key": True,
            "only-output-from-instance": Selection(ranges=((0, 0),)),
        },
        ["python", "train.py"],
    ),
}

LINES = {**GUIDE, **OBSERVED}


@pytest.mark.parametrize(("line", "given", "program"), LINES.values(), ids=list(LINES))
def test_a_real_command_line_means_what_its_author_meant(
    line: str, given: dict[str, object], program: list[str]
) -> None:
    assert meaning(line) == (given, program)
