"""/metrics and /load of all frontends of a server, whichever of them is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..exchange.messages import Answer, AskFigures, AskLoad, FrontendFigures, ProcessFamily, ProcessSample
from ..exchange.siblings import Siblings
from ..openai.serving import Serving
from .figures import Figures, add_figures
from .metric_families import FRONTEND_STATES
from .metric_help import HELP


class Together:
    """See the module.

    Args:
        serving: what this frontend serves and counts.
        siblings: the other frontends; None: there are none.
    """

    def __init__(self, serving: Serving, siblings: Siblings | None) -> None:
        self._serving = serving
        self._siblings = siblings
        self._last_of_others = Figures()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    async def metrics_page(self) -> bytes:
        """Return /metrics in Prometheus' text format."""
        metrics = self._serving.metrics
        if self._siblings is None:
            return generate_latest(_Collected([*metrics.families([]), *self._process.collect()]))
        own = self._own_figures()
        others, answer = await self._ask_others(own)
        families = [
            *metrics.families([others.figures]),
            self._frontends(answer),
            *_process_families({**own.processes, **others.processes}),
        ]
        return generate_latest(_Collected(families))

    async def figures(self) -> Figures:
        """Return what all frontends have counted. What others know of the cores is remembered."""
        metrics = self._serving.metrics
        if self._siblings is None:
            return metrics.figures
        others, _ = await self._ask_others(self._own_figures())
        metrics.totals.learn(others.figures.cores)
        return add_figures([metrics.figures, others.figures])

    async def _ask_others(self, own: FrontendFigures) -> tuple[FrontendFigures, Answer]:
        """Return what the others have counted: what they last had, if the launcher says nothing."""
        assert self._siblings is not None
        answer = await self._siblings.figures(own)
        if answer.figures is None:
            return FrontendFigures(self._last_of_others, {}), answer
        self._last_of_others = answer.figures.figures
        return answer.figures, answer

    async def load(self) -> dict[str, int]:
        """Return the answer of /load."""
        own = self._serving.admission.num_answering
        if self._siblings is None:
            return {"server_load": own}
        answer = await self._siblings.load()
        missing = {"num_frontends_missing": answer.num_missing} if answer.num_missing else {}
        return {"server_load": own + answer.load, **missing}

    def answer(self, question: AskFigures | AskLoad) -> Answer:
        """Return what this frontend alone has to say."""
        if isinstance(question, AskLoad):
            return Answer(load=self._serving.admission.num_answering)
        return Answer(figures=self._own_figures())

    def _own_figures(self) -> FrontendFigures:
        assert self._siblings is not None
        families = [_as_data(family) for family in self._process.collect()]
        return FrontendFigures(self._serving.metrics.figures, {self._siblings.index: families})

    def _frontends(self, answer: Answer) -> Metric:
        assert self._siblings is not None
        family = GaugeMetricFamily("pagewire_frontends", HELP["frontends"], labels=["state"])
        num_answering = self._siblings.count - answer.num_missing - answer.num_ended
        counts = (num_answering, answer.num_missing, answer.num_ended)
        for state, count in zip(FRONTEND_STATES, counts, strict=True):
            family.add_metric([state], count)
        return family


class _Collected(Collector):
    """Families that are there already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _as_data(family: Metric) -> ProcessFamily:
    samples = [ProcessSample(sample.name, dict(sample.labels), sample.value) for sample in family.samples]
    return ProcessFamily(family.name, family.documentation, family.type, samples)


def _process_families(processes: dict[int, list[ProcessFamily]]) -> Iterator[Metric]:
    """Return the families of several processes, their series told apart by the label `frontend`."""
    families: dict[str, Metric] = {}
    for index, own in sorted(processes.items()):
        for family in own:
            metric = families.get(family.name)
            if metric is None:
                metric = families[family.name] = Metric(family.name, family.documentation, family.type)
            for sample in family.samples:
                metric.add_sample(sample.name, {**sample.labels, "frontend": str(index)}, sample.value)
    yield from families.values()


TOGETHER = web.AppKey("together", Together)
