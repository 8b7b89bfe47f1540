"""Groups of replicas that each have a value of their own of a variable."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VariableGroups:
    """The groups of all replicas of a job. The variable has a row for each group."""

    # Whether the replicas of a group are not neighbours, but `count` apart.
    orthogonal: bool
    size: int
    count: int

    def group_of(self, replica: int) -> int:
        """Return the group of a replica of the job."""
        return replica % self.count if self.orthogonal else replica // self.size
