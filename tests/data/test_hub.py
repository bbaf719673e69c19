"""Without a network the hub's client is not asked to retry."""

import socket

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import OfflineModeIsEnabled

from antiphase.data.hub import offline_at_once


@pytest.fixture
def no_network(monkeypatch):
    def fail(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def test_without_a_network_only_the_cache_is_asked(no_network, tmp_path):
    words = r"huggingface\.co cannot be reached, and its cache has no copy"
    with pytest.raises(OSError, match=words), offline_at_once():
        hf_hub_download("nobody/nothing", "weights.safetensors", cache_dir=tmp_path)
    assert not constants.HF_HUB_OFFLINE


def test_a_proxy_may_know_the_host(no_network, monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"https": "http://proxy:3128"})
    with offline_at_once():
        assert not constants.HF_HUB_OFFLINE


def test_who_asked_for_offline_mode_is_told_so(no_network, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OfflineModeIsEnabled), offline_at_once():
        raise OfflineModeIsEnabled("offline mode is enabled")
    assert constants.HF_HUB_OFFLINE
