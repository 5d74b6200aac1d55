"""A plan holds only what exists, and says what it is."""

from __future__ import annotations

import pytest
from ovpack.ov_backends.errors import OVNPUError, PlanError
from ovpack.ov_backends.plan import POLICIES, PRECISIONS, PRESETS, SUBMODELS, TITLES, DevicePlan, SubmodelPlan


def test_one_vae_plan_serves_decoder_and_encoder():
    plan = DevicePlan(text_encoder=SubmodelPlan("CPU"), unet=SubmodelPlan("NPU"), vae=SubmodelPlan("GPU"))
    names = ("text_encoder", "unet", "vae_decoder", "vae_encoder")
    assert [plan.submodel(name).device for name in names] == ["CPU", "NPU", "GPU", "GPU"]


@pytest.mark.parametrize(
    "preset, devices",
    [
        ("battery", ("NPU", "NPU", "AUTO")),
        ("balanced", ("AUTO", "NPU", "AUTO")),
        ("performance", ("AUTO", "GPU", "AUTO")),
    ],
)
def test_presets_place_the_submodels(preset, devices):
    plan = DevicePlan.preset(preset, "error")
    assert (plan.text_encoder.device, plan.unet.device, plan.vae.device, plan.policy) == (*devices, "error")


def test_a_preset_is_not_changed_by_its_use():
    DevicePlan.preset("battery", "allow")
    assert PRESETS["battery"].policy == "warn"


@pytest.mark.parametrize(
    "make, choices",
    [
        (lambda: SubmodelPlan("CPU", "fp8"), PRECISIONS),
        (lambda: DevicePlan(policy="ignore"), POLICIES),
        (lambda: DevicePlan.preset("turbo"), PRESETS),
        (lambda: DevicePlan.preset("battery", "ignore"), POLICIES),
    ],
)
def test_a_value_that_does_not_exist_is_named_with_those_that_do(make, choices):
    with pytest.raises(PlanError, match=", ".join(choices)) as caught:
        make()
    assert isinstance(caught.value, OVNPUError)


def test_a_plan_reads_as_a_sentence_part():
    plan = DevicePlan(unet=SubmodelPlan("NPU", "fp16"), policy="error")
    assert str(plan) == "text_encoder AUTO auto, unet NPU fp16, vae AUTO auto; policy error"


def test_equal_plans_are_one_key():
    assert len({DevicePlan(), DevicePlan(), DevicePlan(unet=SubmodelPlan("NPU"))}) == 2


def test_every_submodel_has_a_title():
    assert set(TITLES) == set(SUBMODELS)
