"""The page of --show-config: every option, its value and where that comes from."""

from poprun.options.help import default_text
from poprun.options.settings import DEFAULT, Setting, Settings
from poprun.options.table import OPTIONS
from poprun.options.types import Option, read_count


def as_table(settings: Settings) -> str:
    """Return a line for each option: its name, its value and the origin of that."""
    rows = [
        (OPTIONS[name].flag, _effective_text(settings, OPTIONS[name]), setting.origin)
        for name, setting in settings.entries.items()
    ]
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 40)
    return "".join(f"{a:{first}}  {b:{second}}  {c}\n" for a, b, c in rows)


def as_object(settings: Settings) -> dict[str, dict[str, object]]:
    """Return the value of each option and the origin of that, for JSON."""
    return {
        name: {"value": setting.value, "origin": setting.origin}
        for name, setting in settings.entries.items()
    }


def _effective_text(settings: Settings, option: Option) -> str:
    setting = settings.entries[option.name]
    if setting.origin != DEFAULT:
        return _given_text(option, setting)
    if option.rival and not option.exclusive and settings.is_given(option.rival):
        return f"see --{option.rival}"
    return default_text(option)


def _given_text(option: Option, setting: Setting) -> str:
    if isinstance(setting.value, bool):
        return "yes" if setting.value else "no"
    if option.read is read_count:
        return str(setting.value)
    if option.multiple:
        return ", ".join(repr(text) for text in setting.texts)
    text = setting.texts[-1]
    return text if text.isprintable() and " " not in text else repr(text)
