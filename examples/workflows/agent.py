"""An agent as anybody writes one, with the `openai` client alone: it drafts an answer, looks at it again, and answers.

Nothing of Partita is imported. It is trained as it is: `partita train examples/workflows/agent.yaml`
"""

from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none")  # made once: making one takes a tenth of a second
CHECK = "Look at the list again. Which number is the largest? Answer with the number alone."


def agent(base_url: str, api_key: str, model: str, messages: list[dict]) -> str:
    """Two calls, one conversation. The text that it returns is scored by the task's reward."""
    client = CLIENT.with_options(base_url=base_url, api_key=api_key)
    draft = client.chat.completions.create(model=model, messages=messages)
    conversation = [*messages, draft.choices[0].message, {"role": "user", "content": CHECK}]
    final = client.chat.completions.create(model=model, messages=conversation)
    return final.choices[0].message.content or ""
