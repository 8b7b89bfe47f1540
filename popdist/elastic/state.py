"""The state of a program that all members of an elastic job have in common."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from popdist.elastic.objects import broadcast_object
from popdist.elastic.reforming import check_members, check_refusals, refusal
from popdist.errors import ElasticError, MismatchError
from popdist.generations import GENERATIONS
from popdist.session import STATE

# The number of the commit of a member that has synchronised with no other one.
_NONE = -1
LOST_STATE = (
    "All instances that had the state of this job have ended before those that joined "
    "them later received it. Start the job again from a checkpoint. With "
    "--max-restarts, poprun starts it again."
)


class Kept:
    """An object of a State. Each kind of object has a subclass.

    A subclass of it for another kind is made known by State.kinds.insert(0, it).
    """

    # Any: objects of all types can be kept.
    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def accepts(cls, value: Any) -> bool:
        """Return whether this is the class for an object."""
        return True

    def content(self) -> Any:
        """Return a description of the object that can be pickled and copied.

        It may refer to the memory of the object.
        """
        return self.value

    def load(self, content: Any) -> None:
        """Give the object a content, of this or another member; it may keep that."""
        self.value = content


class _StateDict(Kept):
    """An object with state_dict() and load_state_dict(), as torch's have them."""

    @classmethod
    def accepts(cls, value: Any) -> bool:
        names = "state_dict", "load_state_dict"
        return all(callable(getattr(value, name, None)) for name in names)

    def content(self) -> Any:
        return self.value.state_dict()

    def load(self, content: Any) -> None:
        self.value.load_state_dict(content)


class State:
    """Objects that are the same on all members, with a copy of their last commit.

    The objects are its attributes, and can be replaced: state.epoch += 1. Objects with
    state_dict() and load_state_dict() (modules, optimizers, schedulers) stay the same
    objects, and these functions copy their contents. All others are copied deeply.
    """

    # The kinds of objects; the first one that accepts an object keeps it.
    kinds: ClassVar[list[type[Kept]]] = [_StateDict, Kept]

    # Any: as in Kept.
    def __init__(self, **objects: Any) -> None:
        """Keep these objects; tell poprun that this instance can re-form."""
        kept = {name: self._keep(value) for name, value in objects.items()}
        own = sorted(kept.keys() & set(dir(self)) | {n for n in kept if n[0] == "_"})
        if own:
            raise ValueError(
                f"State() got {', '.join(own)}, but the names of its own attributes, "
                "and names that begin with _, cannot be those of objects. Choose other "
                "names."
            )
        self._kept: Mapping[str, Kept]
        self.__dict__["_kept"] = kept
        self._number = _NONE
        self._save(_NONE)
        refusal()

    def __getattr__(self, name: str) -> Any:
        kept = self.__dict__.get("_kept", {})
        if name not in kept:
            raise AttributeError(self._describe_missing(name))
        return kept[name].value

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif name in self._kept:
            self.__dict__["_kept"] = {**self._kept, name: self._keep(value)}
        else:
            raise AttributeError(self._describe_missing(name))

    def __repr__(self) -> str:
        return f"<State of {', '.join(self._kept) or 'nothing'}: commit {self._number}>"

    def commit(self) -> None:
        """Save the objects as they are now, and check whether the members change.

        All members must call it at the same point of their loops.

        Raises:
            MembersChangedError: Instances are to join or leave; on all members.
            PeerLostError: Instances have ended.
        """
        self._save(self._number + 1)
        self.check()

    def check(self) -> None:
        """Check, without a commit, whether the members change: see commit()."""
        check_members()

    def restore(self) -> None:
        """Give the objects the values of the last commit.

        Without one, they get the values of the last sync(), or of the beginning.
        """
        for name, content in copy.deepcopy(self._saved).items():
            self._kept[name].load(content)

    def sync(self) -> None:
        """Give the objects, on all members, the values of one member, and commit these.

        All members must call it. Among the members that have had the state of the job,
        the one with the newest commit sends its values, and the one with the lowest
        rank if there are several.

        Raises:
            MismatchError: The members have objects of other names.
            ElasticError: The members that had the values have ended, or only some
                members can re-form.
        """
        group = STATE.group("replicas", STATE.job.members)
        own = bool(refusal()), not GENERATIONS.lacks_state, self._number
        rows = np.array(group.all_gather(np.array(own, np.int64))).tolist()
        check_refusals([refused for refused, *_ in rows])
        sources = [(has_state, number) for _, has_state, number in rows]
        # Members that have just joined have initial values, whatever their commits.
        has_state, newest = newest_source = max(sources)
        if not has_state:
            raise ElasticError(LOST_STATE)
        if len(sources) > 1:
            root = sources.index(newest_source)
            contents = broadcast_object(group, self._contents, root)
            if contents is not None:
                self._load(contents, STATE.job.members[root])
        self._save(max(newest, 0))
        GENERATIONS.has_state = True

    def _contents(self) -> dict[str, Any]:
        return {name: kept.content() for name, kept in self._kept.items()}

    def _load(self, contents: Mapping[str, Any], root: int) -> None:
        if contents.keys() != self._kept.keys():
            raise MismatchError(
                f"This instance has a State of {', '.join(self._kept) or 'nothing'}, "
                f"but instance {root} has one of {', '.join(contents) or 'nothing'}. "
                "Give the State the same names on all instances."
            )
        for name, content in contents.items():
            self._kept[name].load(content)

    def _save(self, number: int) -> None:
        # Both at once: a commit that fails must not be the newest.
        self._saved, self._number = copy.deepcopy(self._contents()), number

    def _keep(self, value: Any) -> Kept:
        return next(kind for kind in self.kinds if kind.accepts(value))(value)

    def _describe_missing(self, name: str) -> str:
        names = ", ".join(self.__dict__.get("_kept", ())) or "none"
        return (
            f"The State has no object {name!r}. The names given to State() are {names}."
        )
