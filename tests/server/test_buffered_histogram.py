"""Values put by count as if they had been counted at once."""

import pytest
from prometheus_client import CollectorRegistry, Histogram

from ortloom.server.buffered_histogram import BufferedHistogram


@pytest.mark.parametrize("count", [0, 5, 10_000])
def test_the_numbers_are_a_histograms(count):
    shown = []
    for kind in (Histogram, BufferedHistogram):
        registry = CollectorRegistry()
        made = kind("h", "text", ["a"], registry=registry, buckets=(0.1, 0.5, 2.0)).labels("x")
        for number in range(count):
            made.observe((number % 12) / 4 - 0.25)
            if number == 3:
                list(registry.collect())  # reading in between changes nothing
        made.observe(0.5)
        samples = [s for metric in registry.collect() for s in metric.samples]
        shown.append([(s.name, s.labels, s.value) for s in samples if "created" not in s.name])
    plain, buffered = shown
    assert [row[:2] for row in plain] == [row[:2] for row in buffered]
    assert [row[2] for row in buffered] == pytest.approx([row[2] for row in plain])
