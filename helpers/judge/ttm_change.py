"""The changes that a plan for the TTM limit makes on a box: which kernel arguments and modprobe.d
settings are removed, and which are added.
"""

from __future__ import annotations

from dataclasses import dataclass

from helpers.ground import shell
from helpers.ground.shapes import TtmPlan
from helpers.judge import table
from helpers.look import ttm as parameters
from helpers.look.bundle import Bundle

CONF = "/etc/modprobe.d/zz-ttm-limit.conf"
"""Our file: modprobe reads its folder in the order of names, and the last one counts
(modprobe.d(5)).
"""
TTM_MODULES = ("ttm", "amdttm", "amd_ttm")
"""The kernel's module, and AMD's out-of-tree one under its present and its earlier name."""


@dataclass(frozen=True)
class LimitChange:
    """What a plan changes on a box.

    ``pages``: the limit to set, None for none, in pages of ``page_bytes``. ``module``: the TTM
    module that amdgpu uses, ``modules`` all that get the value. ``arguments``: what the kernel
    command line has afterwards of these settings, ``before`` what it has now. ``drop``: names of
    the settings that are removed everywhere, ``files`` the modprobe.d files that have them, quoted
    for a shell. ``resets``: a limit is removed, and none is set in its place.
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
        """The names that are removed, as a pattern of sed."""
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
    module = "ttm"
    if used.ok:
        module = str(used.value)
    pages = None
    if plan.action == "set":
        pages = plan.pages_limit
    removed = {stale.name for stale in stale_settings(bundle)}
    # A plan that sets or removes the limit takes every earlier one away; ``leave`` keeps them.
    if plan.action != "leave":
        for setting in configured + cmdline:
            if setting.name == "pages_limit":
                removed.add(_full_name(setting))
    if pages is None and not removed:
        return None
    files = {setting.source for setting in configured if _full_name(setting) in removed}
    files.discard(CONF)  # it is written anew, or removed as a whole
    limits = [f"{name}.pages_limit" for name in modules if pages]
    drop = sorted(removed.union(limits))
    before = [
        f"{_full_name(setting)}={setting.value}"
        for setting in cmdline
        if _full_name(setting) in drop
    ]
    return LimitChange(
        box=bundle.box,
        is_live=bundle.kind == "live",
        pages=pages,
        page_bytes=page_bytes,
        module=module,
        modules=modules,
        arguments=[f"{limit}={pages}" for limit in limits],
        before=list(dict.fromkeys(before)),
        drop=drop,
        # Others, below /usr/lib, are a package's: a file in /etc with their name replaces them.
        files=[shell.word(path) for path in sorted(files) if path.startswith("/etc/")],
        resets=pages is None and any(name.endswith(".pages_limit") for name in drop),
    )


def _full_name(setting: parameters.Setting) -> str:
    """MODULE.NAME, as the kernel command line spells a parameter."""
    return f"{setting.module}.{setting.name}"


@dataclass(frozen=True)
class StaleSetting:
    """A setting that earlier advice left behind and that does not raise the pool: its name
    (MODULE.NAME), value and place, and why it should be removed.
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
        is_of_ttm = setting.name == "page_pool_size"  # the others are amdgpu's
        if is_of_ttm or setting.module == "amdgpu":
            stale.append(
                StaleSetting(
                    name=_full_name(setting),
                    value=setting.value,
                    place=f"{setting.source}:{setting.line}",
                    why=reasons[setting.name],
                )
            )
    return stale


def is_built_in(bundle: Bundle, module: str) -> bool:
    """Whether the module is a part of the kernel, which then reads only the command line and not
    modprobe.d: it has parameters in /sys, and is not in the list of loaded modules. False where
    that list was not captured.
    """
    loaded = parameters.parse_modules(bundle.read("/proc/modules").text)
    return bool(loaded) and module not in loaded and _has_folder(bundle, module)


def _has_folder(bundle: Bundle, module: str) -> bool:
    """Whether the box has parameters of a module in /sys."""
    return bool(bundle.sources(f"/sys/module/{module}/parameters/*"))
