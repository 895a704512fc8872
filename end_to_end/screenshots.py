"""Pictures of Prefect's UI for the documents: `make screenshots` writes docs/images.

Deploys as a person would, trains the quickstart from its deployment, kills its worker once, and looks at the pages in
headless Chromium. Takes some minutes. Needs selenium, chromium and chromium-driver, and says so when one is missing.
"""

import importlib.util
import io
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from agrpo.store import processes
from end_to_end.prefect_world import ROOT, PrefectWorld

IMAGES = ROOT / "docs" / "images"
NAME = "first"
"""The run that prefect.yaml names."""
WIDTH = 1280
NUM_COLOURS = 128
PATIENCE_S = 120.0
TRAINING_S = 3600.0
HOW_TO_GET_IT = "apt-get install chromium chromium-driver && .venv/bin/python -m pip install selenium"


class Browser:
    """Headless Chromium that takes pictures of pages."""

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for argument in (
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
            f"--user-data-dir={folder}",
        ):
            options.add_argument(argument)
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        self._driver = webdriver.Chrome(options=options, service=service)

    def close(self) -> None:
        """End it."""
        self._driver.quit()

    def open(self, url: str, *texts: str) -> None:
        """Open a page and wait until it shows these texts."""
        self._driver.set_window_size(WIDTH, 900)
        self._driver.get(url)
        self.wait_for(*texts)

    def wait_for(self, *texts: str) -> None:
        """Wait until the page shows these texts."""
        deadline = time.monotonic() + PATIENCE_S
        while missing := [text for text in texts if text not in self.text()]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._driver.current_url} does not show {missing}, but: {self.text()[:2000]}")
            time.sleep(0.2)

    def text(self) -> str:
        """What the page says."""
        return str(self._driver.execute_script("return document.body.innerText"))

    def scroll_to(self, text: str) -> None:
        """Bring what is labelled so to the top."""
        from selenium.webdriver.common.by import By

        found = self._driver.find_element(By.XPATH, f"//*[normalize-space()='{text}']")
        self._driver.execute_script("arguments[0].scrollIntoView({block: 'start'})", found)

    def picture(self, name: str, height: int) -> Path:
        """Write what the window shows as docs/images/NAME.png."""
        from PIL import Image

        self._driver.set_window_size(WIDTH, height)
        self._driver.execute_script("document.activeElement.blur()")
        time.sleep(1.5)  # nothing says when its parts have moved to their places
        image = Image.open(io.BytesIO(self._driver.get_screenshot_as_png())).convert("RGB")
        path = IMAGES / f"{name}.png"
        image.quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        return path


def missing() -> list[str]:
    """What has to be installed first."""
    programs = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return programs if importlib.util.find_spec("selenium") else [*programs, "selenium"]


def train(world: PrefectWorld, is_tiny: bool) -> str:
    """Deploy, train with one worker killed; the flow run's id."""
    world.say("flows", "deploy")
    world.say("flows", "automations")
    world.start_worker()
    flow = world.run_deployment(NAME, max_steps=40) if is_tiny else world.run_named("agrpo-train/train")
    world.wait("three steps", lambda: world.step(NAME) >= 3, TRAINING_S)
    [worker] = [process for process in processes.live(world.store, NAME) if process.kind == "worker"]
    os.kill(worker.pid, signal.SIGKILL)
    world.wait("the end", lambda: world.state(flow) == "Completed", TRAINING_S)
    return flow


def look(world: PrefectWorld, browser: Browser, flow: str) -> None:
    """Take every picture."""
    browser.open(f"{world.url}/deployments", "train", "evaluate", "nightly")
    browser.picture("deployments", 560)
    deployment = world.api("GET", "/deployments/name/agrpo-train/train")["id"]
    browser.open(f"{world.url}/deployments/deployment/{deployment}/run", "Learning Rate")
    browser.picture("form", 1500)
    browser.scroll_to("Trainer (Optional)")
    browser.picture("form-trainer", 1500)
    browser.open(f"{world.url}/runs/flow-run/{flow}", "train from step")
    browser.picture("run", 1000)
    wanted = {"artifacts": {"flow_run_id": {"any_": [flow]}, "key": {"any_": [f"{NAME}-run"]}}}
    [artifact] = world.api("POST", "/artifacts/filter", wanted)
    browser.open(f"{world.url}/artifacts/artifact/{artifact['id']}", f"{NAME}: finished", "begun again because")
    browser.picture("artifact", 1500)


def main(is_tiny: bool) -> None:
    """Write docs/images; `--tiny` takes a tiny model and made-up tokens, whose curves say nothing."""
    if missing():
        sys.exit(f"there is no {', '.join(missing())}; install: {HOW_TO_GET_IT}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, PrefectWorld(Path(folder)) as world:
        flow = train(world, is_tiny)
        browser = Browser(Path(folder) / "browser")
        try:
            look(world, browser, flow)
        finally:
            browser.close()


if __name__ == "__main__":
    main("--tiny" in sys.argv[1:])
