"""Sources of settings: defaults, profile, file, environment, flags. The only reader of the environment.

Later ones win: defaults, profile, TOML file, environment, flags. Every wrong setting is reported before anything starts.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from pydantic import BaseModel, ValidationError

from node.config.allowed import describe_allowed, describe_value
from node.config.checks import find_invalid, mask_password
from node.config.paths import CONFIG_FILE, user_data_dir
from node.config.settings import PROFILES, FacesSettings, NodeSettings, Settings
from node.config.web import WebSettings
from node.errors import WrongSetting
from registry.settings import MeshSettings, RegistrySettings
from router.settings import RouterSettings

PREFIX = "MODELVINE_"
DEFAULT_NODE = "http://127.0.0.1:6100"
MAX_FILE_BYTES = 1024 * 1024

SECTIONS: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "node": NodeSettings,
        "web": WebSettings,
        "faces": FacesSettings,
        "mesh": MeshSettings,
        "registry": RegistrySettings,
        "router": RouterSettings,
    }
)
KEYS = tuple(
    f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields
)
"""All settings, as `section.name`."""

FLAG_KEYS = frozenset(
    {
        *(key for key in KEYS if key.startswith("node.")),
        "mesh.listen",
        "mesh.announce",
        "mesh.bootstrap",
        "mesh.mdns",
        "mesh.nat",
        "mesh.relay",
        "mesh.rendezvous",
        "mesh.rendezvous_point",
    }
)
"""The settings that `modelvine up` takes as flags; their environment variables do not contain the section."""

_OTHER_VARIABLES = {"MODELVINE_NODE", "MODELVINE_CONFIG", "MODELVINE_KEY", "MODELVINE_JOIN"}
# Kubernetes sets such variables in every pod of a namespace with a service called "modelvine".
_ORCHESTRATOR = ("MODELVINE_SERVICE_", "MODELVINE_PORT")


@dataclass(frozen=True, slots=True)
class SourcedValue:
    """A value before it is checked, and the place where it was set."""

    value: object
    origin: str


Layer = Mapping[str, SourcedValue]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings in effect; `origins` says for each `section.name` where its value comes from."""

    settings: Settings
    origins: Mapping[str, str]

    def rows(self) -> tuple[tuple[str, object, str], ...]:
        """Return key, value and origin of every setting, with passwords masked."""
        sections = self.settings.model_dump()
        return tuple(
            (key, mask_password(key, _pick(sections, key)), self.origins[key]) for key in KEYS
        )


def variable(key: str) -> str:
    """Return the environment variable of a setting."""
    section, name = key.split(".")
    return PREFIX + (name if key in FLAG_KEYS else f"{section}_{name}").upper()


def flag(key: str) -> str:
    """Return the flag of a setting in `FLAG_KEYS`."""
    return "--" + key.partition(".")[2].replace("_", "-")


def load(
    flags: Mapping[str, object],
    *,
    file: str = "",
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Configuration:
    """Merge the layers and check the result; raise `WrongSetting`.

    `flags` maps `section.name` to values from the command line. `file` is the settings file named there; without one
    MODELVINE_CONFIG counts, then `modelvine.toml` in `directory` if it exists.
    """
    environment = os.environ if environment is None else environment
    path = _settings_file(file or environment.get("MODELVINE_CONFIG", ""), directory or Path())
    from_file = _file_layer(path) if path else {}
    written = {**from_file, **_environment_layer(environment), **_flag_layer(flags)}
    layers = {**_profile_layer(written), **written}
    values = {key: sourced.value for key, sourced in layers.items()}
    if not values.get("node.data_dir"):
        values["node.data_dir"] = str(user_data_dir(environment))
    origins = {key: layers[key].origin if key in layers else "default" for key in KEYS}
    settings = _validate(values, origins)
    return Configuration(settings, MappingProxyType(origins))


def node_address() -> str:
    """Return MODELVINE_NODE, the URL of the node that commands talk to; empty if it is not set."""
    return os.environ.get("MODELVINE_NODE", "")


def configured_key() -> str:
    """Return MODELVINE_KEY, the key that commands show to a node; empty if it is not set."""
    return os.environ.get("MODELVINE_KEY", "")


def configured_invitation() -> str:
    """Return MODELVINE_JOIN, the invitation that a node is started with; empty if it is not set."""
    return os.environ.get("MODELVINE_JOIN", "")


def can_redraw(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether lines of `stream` can be redrawn: it is a terminal that obeys escape sequences."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def _settings_file(name: str, directory: Path) -> Path | None:
    if name:
        return Path(name)
    path = directory / CONFIG_FILE
    # `Path.exists` raises an error in a directory that this user may not enter, as after `cd /root; sudo -u ann …`.
    return path.absolute() if os.path.exists(path) else None  # noqa: PTH110


def _file_layer(path: Path) -> Layer:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise WrongSetting(f"the settings file {path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_FILE_BYTES:
        raise WrongSetting(f"the settings file {path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        content = tomllib.loads(text.decode("utf-8-sig"))
    except ValueError as error:  # both a TOMLDecodeError and a UnicodeDecodeError
        raise WrongSetting(f"the settings file {path} is not TOML: {error}") from error
    layer: dict[str, SourcedValue] = {}
    for section, entries in content.items():
        if section in SECTIONS and not isinstance(entries, dict):
            raise WrongSetting(
                f"{path} sets {section}, which must be a table: begin it with [{section}]"
            )
        if section not in SECTIONS:
            raise WrongSetting(_unknown_section(section, path))
        for name, value in entries.items():
            key = f"{section}.{name}"
            if key not in KEYS:
                raise WrongSetting(f"{path} sets {key}, which does not exist{_nearest(key, KEYS)}")
            layer[key] = SourcedValue(value, str(path))
    return layer


def _unknown_section(section: str, path: Path) -> str:
    homes = [key for key in KEYS if key.partition(".")[2] == section]
    if homes:
        home, _, name = homes[0].partition(".")
        return f"{path} sets {name} outside its section: put it under [{home}]"
    sections = ", ".join(f"[{name}]" for name in SECTIONS)
    return f"{path} has [{section}], which does not exist: the sections are {sections}"


def _environment_layer(environment: Mapping[str, str]) -> Layer:
    keys = {variable(key): key for key in KEYS}
    layer: dict[str, SourcedValue] = {}
    for name, text in environment.items():
        if (
            not name.startswith(PREFIX)
            or name in _OTHER_VARIABLES
            or name.startswith(_ORCHESTRATOR)
        ):
            continue
        if name not in keys:
            raise WrongSetting(
                f"the environment sets {name}, which does not exist{_nearest(name, keys)}"
            )
        # Compose files pass unset variables as empty ones.
        if text:
            layer[keys[name]] = SourcedValue(_from_text(keys[name], text), name)
    return layer


def _flag_layer(flags: Mapping[str, object]) -> Layer:
    return {key: SourcedValue(value, flag(key)) for key, value in flags.items()}


def _profile_layer(written: Layer) -> Layer:
    chosen = written.get("node.profile", SourcedValue("local", "default")).value
    delta = PROFILES.get(chosen, {}) if isinstance(chosen, str) else {}
    return {key: SourcedValue(value, f"profile {chosen}") for key, value in delta.items()}


def _from_text(key: str, text: str) -> object:
    if isinstance(_default(key), tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _validate(values: Mapping[str, object], origins: Mapping[str, str]) -> Settings:
    nested: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    for key, value in values.items():
        section, _, name = key.partition(".")
        nested[section][name] = value
    # Pydantic takes true for 1.
    problems = {key: _advice(key) for key, value in values.items() if _is_misused_bool(key, value)}
    try:
        settings = Settings.model_validate(nested)
    except ValidationError as error:
        # Pydantic reports a list once per bad entry; one sentence per setting is enough.
        found = dict.fromkeys(".".join(map(str, e["loc"][:2])) for e in error.errors())
        problems |= {key: _advice(key) for key in found}
        raise WrongSetting(_sentences(problems, values, origins)) from None
    if problems:
        raise WrongSetting(_sentences(problems, values, origins))
    wrong = find_invalid(settings, origins)
    if wrong:
        raise WrongSetting(_sentences(wrong, values, origins))
    return settings


def _sentences(
    wrong: Mapping[str, str], values: Mapping[str, object], origins: Mapping[str, str]
) -> str:
    lines: list[str] = []
    for key, advice in wrong.items():
        value = mask_password(key, values[key] if key in values else _default(key))
        if isinstance(_default(key), tuple) and isinstance(value, list | tuple):
            # As it is written in a variable.
            value = ", ".join(map(str, value))
        lines.append(f"{key} is {describe_value(value)} (from {origins[key]}): it {advice}")
    return "\n".join(lines)


def _advice(key: str) -> str:
    section, _, name = key.partition(".")
    return f"must be {describe_allowed(SECTIONS[section], name)}"


def _is_misused_bool(key: str, value: object) -> bool:
    default = _default(key)
    return (
        isinstance(value, bool)
        and isinstance(default, int | float)
        and not isinstance(default, bool)
    )


def _default(key: str) -> object:
    return _pick({name: model().model_dump() for name, model in SECTIONS.items()}, key)


def _pick(sections: Mapping[str, Mapping[str, object]], key: str) -> object:
    section, _, name = key.partition(".")
    return sections[section][name]


def _nearest(name: str, names: Mapping[str, str] | tuple[str, ...]) -> str:
    close = get_close_matches(name, names, n=1)
    if not close:  # a correct name under a wrong section may look too different
        leaf = name.rpartition("." if "." in name else "_")[2]
        close = [other for other in names if other.endswith(leaf)][:1]
    return f": did you mean {close[0]}?" if close else ""
