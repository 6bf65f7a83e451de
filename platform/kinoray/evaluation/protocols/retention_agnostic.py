"""As `retention`, where nobody says which task a test is of (X-TAIL).

A clip's class is told among the classes of all tasks, learned or not, and is right only if task and class are: two
tasks may have a class of one name. A caption's clip is looked for among those of all tasks without labels. A method is
asked for all as of the newest task.
"""

from kinoray.evaluation.protocols import retention


class Protocol(retention.Protocol):
    """Classes by their texts and videos by their captions, all tasks together."""

    about = (
        "Percent of test clips whose class comes first among the classes of all tasks, or of captions whose clip does"
    )
    knows_task = False
