"""Prompts whose answers copy much of them: quotations and edits, which lookup in a request's own text is for.

The set is fixed: figures of different days are about the same work. Changes of it make old figures void.
"""

from __future__ import annotations

import re

_LETTER = """Dear Mrs. Holloway,
Thank you for your letter of the 3rd of March. We have looked into the delay of your order and found that the parcel was
held at the border because a customs form was missing. The form has been sent since, and the parcel should reach you by
the end of next week. We are sorry for the trouble that this has caused you, and have taken the postage off your bill.
Yours sincerely,
Peter Lang"""

_CODE = '''def read_records(path, limit):
    """Read records from a file, one a line, up to a limit."""
    records = []
    with open(path, encoding="utf-8") as source:
        for number, line in enumerate(source):
            if number >= limit:
                break
            name, value = line.rstrip("\\n").split(",")
            records.append((name, float(value)))
    return records
'''

_TABLE = """id,city,country,population
1,Lisbon,Portugal,545923
2,Porto,Portugal,231962
3,Madrid,Spain,3332035
4,Seville,Spain,684025
5,Lyon,France,522250
6,Turin,Italy,841600
7,Graz,Austria,302749
8,Bergen,Norway,291189"""

_RECIPE = """Heat the oven to 180 degrees. Beat the butter with the sugar until it is pale, then stir in the eggs one by
one. Sift the flour with the baking powder and a pinch of salt, and fold it in with the milk. Pour the batter into a
greased tin, scatter the almonds over it and bake it for forty minutes. Let the cake cool before you turn it out."""

_CONFIG = """{
  "name": "backup-service",
  "schedule": "0 3 * * *",
  "source": "/srv/data/customers",
  "target": "s3://archive-eu/customers",
  "retention_days": 30,
  "compression": "zstd",
  "notify": ["ops@example.com", "data@example.com"],
  "enabled": true
}"""

_REPORT = """The bridge over the river Anser was closed on Tuesday morning after an inspector found cracks in two of its
eleven steel girders. Engineers of the county said that the bridge, which was built in 1931, carries about nine thousand
vehicles a day. Traffic is led over the bridge at Millbrook, four miles upstream, until the girders have been replaced.
The work is expected to take six weeks and to cost four hundred thousand pounds."""

_STORY = """When the lamplighter came to the last house of the lane, he found the door open and the hall full of snow.
He put down his ladder and called, but nobody answered. On the table stood a cup of tea that was still warm, and by it
lay a letter with his own name on it. He took off his gloves, opened it and read: "Do not light the lamp tonight. They
are watching the street, and they must believe that the house is empty." """

_QUERY = """SELECT customers.name, customers.email, SUM(orders.amount) AS total
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.created_at >= '2024-01-01' AND orders.status = 'paid'
GROUP BY customers.name, customers.email
HAVING SUM(orders.amount) > 1000
ORDER BY total DESC
LIMIT 50;"""

_CLASS = """class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
"""

_MINUTES = """Present: Anna Berg, Tomas Reyes, Li Wei, Oskar Lind.
1. The minutes of the last meeting were approved without changes.
2. Anna Berg reported on the new warehouse. The roof is finished, and the shelves arrive on the 14th of June.
3. Tomas Reyes asked for two more drivers in the summer. It was agreed to hire them from July to September.
4. Li Wei presented the figures of the first quarter: sales rose by eight per cent, costs by three.
5. The next meeting takes place on the 2nd of July at nine o'clock."""


def _copy(kind: str, text: str, num_words: int) -> str:
    """Return a prompt for a quotation of the text, of which the first words are there."""
    beginning = "".join(re.findall(r"\s*\S+", text)[:num_words])
    return f"Here is {kind}:\n\n{text}\n\nHere is {kind} once more, word for word:\n\n{beginning}"


def _edit(kind: str, text: str, change: str, beginning: str) -> str:
    """Return a prompt for the text with a change, of which the beginning is there."""
    return f"Here is {kind}:\n\n{text}\n\nHere is {kind} once more. The only change: {change}.\n\n{beginning}"


COPY_PROMPTS: tuple[str, ...] = (
    _copy("the letter", _LETTER, 14),
    _copy("the function", _CODE, 8),
    _copy("the report", _REPORT, 10),
    _copy("the story", _STORY, 10),
    _copy("the recipe", _RECIPE, 9),
    _copy("the query", _QUERY, 4),
    _copy("the minutes", _MINUTES, 4),
    _copy("the class", _CLASS, 5),
    _edit("the letter", _LETTER, "it goes to Mr. Castle", "Dear Mr. Castle,\nThank you for"),
    _edit(
        "the function",
        _CODE,
        "it is called `load`",
        'def load(path, limit):\n    """Read records from a file, one a line',
    ),
    _edit("the configuration", _CONFIG, "it is called mirror-service", '{\n  "name": "mirror-service",'),
    _edit("the table", _TABLE, "cities are towns", "id,town,country,population\n1,Lisbon"),
    _edit("the class", _CLASS, "it is called `Wallet`", "class Wallet:\n    def __init__(self"),
    _edit("the report", _REPORT, "it was a Friday", "The bridge over the river Anser was closed on Friday morning"),
    _edit("the minutes", _MINUTES, "Oskar Lind was not there", "Present: Anna Berg, Tomas Reyes, Li Wei.\n1. The"),
    _edit("the recipe", _RECIPE, "the oven is hotter", "Heat the oven to 200 degrees. Beat the butter"),
)
