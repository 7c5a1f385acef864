"""Agents of the tests. They run in processes of their own, which import this file."""

import json
import os
import threading
import time
import urllib.error
import urllib.request


def ask(base_url, messages, seconds=30.0, path="chat/completions", **more):
    body = json.dumps({"messages": messages, **more} if path.startswith("chat") else more).encode()
    request = urllib.request.Request(f"{base_url}/{path}", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.load(answer)


def said(base_url, messages, **more):
    return ask(base_url, messages, **more)["choices"][0]["message"]


def twice(base_url, messages):
    draft = said(base_url, messages)
    final = said(base_url, [*messages, draft, {"role": "user", "content": "Sure?"}])
    return {"reward": float(len(final["content"])), "draft": len(draft["content"]), "final": final["content"]}


async def awaited(base_url, messages, answer, colour="red"):
    return f"{said(base_url, messages)['content']} {answer} {colour}"


def raising(base_url, messages):
    if said(base_url, messages)["content"] == "0":
        raise ValueError("no luck")
    return 1.0


def silent(messages):
    return 1.0


def forgetful(base_url, messages):
    said(base_url, messages)


def dying(base_url, messages):
    said(base_url, messages)
    os._exit(3)


def endless(base_url, messages, row):
    if said(base_url, messages)["content"] == "0":
        with open(row["file"], "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(60)
    return 1.0


def parallel(base_url, messages, row):
    """Four calls at once, in an order that is another one each time."""
    words = ["a", "b", "c", "d"]
    order = sorted(words, key=lambda _: os.urandom(4))
    calls = [threading.Thread(target=said, args=(base_url, [{"role": "user", "content": word}])) for word in order]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    return 1.0


def impatient(base_url, messages):
    try:
        said(base_url, messages, seconds=0.3)
    except (TimeoutError, urllib.error.URLError):
        return len(said(base_url, [*messages, {"role": "user", "content": "again"}])["content"])
    raise AssertionError("the model was faster than it is")


def hot(base_url, messages):
    said(base_url, messages, temperature=0.3)
    return 1.0


def with_client(messages):
    """OpenAI's client as it is, which finds the address in the environment."""
    from openai import OpenAI

    client = OpenAI()
    answer = client.chat.completions.create(model="policy", messages=messages)
    history = [*messages, answer.choices[0].message, {"role": "user", "content": "Sure?"}]
    stream = client.chat.completions.create(model="policy", messages=history, stream=True)
    words = "".join(part.choices[0].delta.content or "" for part in stream)
    return {"reward": float(len(words)), "usage": answer.usage.total_tokens}
