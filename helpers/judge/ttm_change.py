"""What a plan for the TTM limit changes on a box: the arguments and files that go, and those that
come.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground import shell
from helpers.ground.shapes import TtmPlan
from helpers.judge import table
from helpers.look import ttm as parameters
from helpers.look.bundle import Bundle

CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
TTM_MODULES = ("ttm", "amdttm", "amd_ttm")


@dataclass(frozen=True)
class LimitChange:
    """What is to be changed on a box.

    ``arguments`` of the kernel command line are to be there and ``before`` are there; ``drop``
    are the names that go, ``files`` the modprobe.d files with stale settings, quoted for a
    shell. ``resets``: a limit that was set goes, and none takes its place.
    """

    box: str
    is_live: bool
    pages: int | None
    page_bytes: int
    module: str
    modules: list[str]
    arguments: list[str]
    before: list[str]
    drop: list[str]
    files: list[str]
    resets: bool

    @property
    def old(self) -> list[str]:
        """The arguments that are only there before."""
        return [argument for argument in self.before if argument not in self.arguments]

    @property
    def new(self) -> list[str]:
        """The arguments that are only there after."""
        return [argument for argument in self.arguments if argument not in self.before]

    @property
    def limit_bytes(self) -> int:
        """The limit that is set; 0 for none."""
        if self.pages is None:
            return 0
        return self.pages * self.page_bytes

    @property
    def patterns(self) -> str:
        """The names that go, as a pattern of sed."""
        return "|".join(name.replace(".", r"\.") for name in self.drop)


def change_of(bundle: Bundle, plan: TtmPlan, page_bytes: int) -> LimitChange | None:
    """What the plan changes on a box; None where nothing needs doing."""
    configured, cmdline = parameters.settings(bundle)
    used = parameters.ttm_module(bundle)
    # Ubuntu's OEM kernels and DKMS have both modules: then both get the value, and only the one
    # in use reads it.
    modules = [
        name for name in TTM_MODULES if name == used.value or _has_folder(bundle, name)
    ]
    if not modules:
        modules = ["ttm"]
    pages = plan.pages_limit if plan.action == "set" else None
    module = str(used.value) if used.ok else "ttm"
    gone = {stale.name for stale in stale_settings(bundle)}
    if plan.action != "leave":
        limits = [s for s in configured + cmdline if s.name == "pages_limit"]
        gone |= {f"{setting.module}.{setting.name}" for setting in limits}
    if pages is None and not gone:
        return None
    touched = {s.source for s in configured if f"{s.module}.{s.name}" in gone} - {CONF}
    arguments = [f"{module}.pages_limit={pages}" for module in modules if pages]
    drop = sorted(gone | {argument.partition("=")[0] for argument in arguments})
    before: dict[str, None] = {}
    for setting in cmdline:
        if f"{setting.module}.{setting.name}" in drop:
            before[f"{setting.module}.{setting.name}={setting.value}"] = None
    return LimitChange(
        box=bundle.box,
        is_live=bundle.kind == "live",
        pages=pages,
        page_bytes=page_bytes,
        module=module,
        modules=modules,
        arguments=arguments,
        before=list(before),
        drop=drop,
        files=[
            shell.word(path) for path in sorted(touched) if path.startswith("/etc/")
        ],
        resets=pages is None and any(name.endswith(".pages_limit") for name in drop),
    )


@dataclass(frozen=True)
class StaleSetting:
    """A setting that earlier advice leaves behind and that does not raise the pool: its name,
    value and place, and why it should go.
    """

    name: str
    value: str
    place: str
    why: str


def stale_settings(bundle: Bundle) -> list[StaleSetting]:
    """The settings of a box that earlier advice left behind."""
    reasons = table("stale_settings")["parameters"]
    stale = []
    for setting in parameters.all_settings(bundle):
        if setting.name not in reasons:
            continue
        if setting.name == "page_pool_size" or setting.module == "amdgpu":
            stale.append(
                StaleSetting(
                    name=f"{setting.module}.{setting.name}",
                    value=setting.value,
                    place=f"{setting.source}:{setting.line}",
                    why=reasons[setting.name],
                )
            )
    return stale


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the kernel was built with the module: then modprobe.d is not read, only the
    kernel command line.
    """
    loaded = parameters.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _has_folder(bundle, module)


def _has_folder(bundle: Bundle, module: str) -> bool:
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))
