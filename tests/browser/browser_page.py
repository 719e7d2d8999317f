"""The live page in a headless Chromium."""

import base64
import hashlib
import shutil

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1360, "height": 900}


def start(runner, scene):
    """A browser that trusts this page's certificate, by the hash of its key, and no other unknown one."""
    key = x509.load_pem_x509_certificate(scene.certificate.read_bytes()).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    pin = f"--ignore-certificate-errors-spki-list={base64.b64encode(digest).decode()}"
    return runner.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, pin])


def sign_in(browser, scene, token, **options):
    """A new window in which somebody signs in with a token, and sees the stream's first messages."""
    page = browser.new_context(**{"viewport": DESKTOP} | options).new_page()
    page.problems = []
    page.on("console", lambda message: message.type in ("error", "warning") and page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(scene.address)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_selector("#hosts-table tbody tr")
    return page
