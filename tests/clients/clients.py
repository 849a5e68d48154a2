"""The Python clients of OpenAI, Anthropic and Ollama against a server with the default model, temperature 0."""

import os

import anthropic
import ollama
import openai

URL = os.environ["FORERUN_URL"]
ASK = [{"role": "user", "content": "What is the capital of France?"}]
SAID = "The capital of France is Paris."


def equal(what, got, want):
    if got != want:
        raise SystemExit(f"{what}: {got!r} instead of {want!r}")


def check_openai():
    client = openai.OpenAI(base_url=URL + "/v1", api_key="x", max_retries=0)
    model = client.models.list().data[0].id
    equal("model", client.models.retrieve(model).id, model)

    whole = client.chat.completions.create(model=model, messages=ASK, temperature=0, logprobs=True, top_logprobs=2)
    equal("chat", whole.choices[0].message.content, SAID)
    equal("finish", whole.choices[0].finish_reason, "stop")
    equal("logprobs", "".join(entry.token for entry in whole.choices[0].logprobs.content), SAID)
    usage = whole.usage
    equal("usage", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)

    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=model, messages=ASK, temperature=0, stream=True, stream_options=options))
    equal("chat stream", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), SAID)
    equal("usage of a stream", chunks[-1].usage.total_tokens, usage.total_tokens)
    with client.chat.completions.stream(model=model, messages=ASK, temperature=0) as stream:
        equal("chat helper", stream.get_final_completion().choices[0].message.content, SAID)

    text = client.completions.create(model=model, prompt="1, 2, 3, 4,", max_tokens=4, temperature=0)
    equal("completion", text.usage.completion_tokens, 4)

    response = client.responses.create(model=model, input=ASK[0]["content"], temperature=0)
    equal("response", response.output_text, SAID)
    equal("kept response", client.responses.retrieve(response.id).output_text, SAID)
    with client.responses.stream(model=model, input=ASK[0]["content"], temperature=0) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        equal("response stream", deltas, SAID)
        equal("final response", stream.get_final_response().output_text, SAID)
    more = client.responses.create(model=model, input="And of Spain?", previous_response_id=response.id, max_output_tokens=4)
    equal("status", more.status, "incomplete")

    try:
        client.chat.completions.create(model=model, messages=ASK, temperature=-1)
    except openai.BadRequestError as err:
        equal("param", err.param, "temperature")
    else:
        raise SystemExit("a temperature of -1 was taken")
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 9000}])
    except openai.BadRequestError as err:
        equal("code", err.code, "context_length_exceeded")
    else:
        raise SystemExit("a prompt past the context was taken")


def check_anthropic():
    client = anthropic.Anthropic(base_url=URL, api_key="x", max_retries=0)
    model = client.models.list().data[0].id
    message = client.messages.create(model=model, max_tokens=50, messages=ASK)
    equal("message", message.content[0].text, SAID)
    equal("stop reason", message.stop_reason, "end_turn")
    count = client.messages.count_tokens(model=model, messages=ASK)
    equal("count", count.input_tokens, message.usage.input_tokens + message.usage.cache_read_input_tokens)
    with client.messages.stream(model=model, max_tokens=50, messages=ASK) as stream:
        equal("message stream", "".join(stream.text_stream), SAID)
        equal("final message", stream.get_final_message().usage.output_tokens, message.usage.output_tokens)
    try:
        client.messages.create(model=model, max_tokens=5, messages=[{"role": "user", "content": "word " * 9000}])
    except anthropic.BadRequestError as err:
        if "prompt is too long" not in err.message:
            raise SystemExit(f"overflow: {err.message}")
    else:
        raise SystemExit("a prompt past the context was taken")


def check_ollama():
    client = ollama.Client(host=URL)
    model = client.list().models[0].model
    options = {"temperature": 0}
    equal("ollama chat", client.chat(model, ASK, options=options).message.content, SAID)
    pieces = client.chat(model, ASK, options=options, stream=True)
    equal("ollama stream", "".join(piece.message.content for piece in pieces), SAID)
    equal("generate", client.generate(model, ASK[0]["content"], options=options).response, SAID)
    equal("show", "completion" in client.show(model).capabilities, True)
    equal("ps", client.ps().models[0].model, model)
    equal("pull", client.pull(model).status, "success")
    try:
        client.chat(model, ASK, options={"temperature": "hot"})
    except ollama.ResponseError as err:
        equal("status", err.status_code, 400)
    except Exception as err:  # The client itself may hold options to their types.
        equal("a refusal", type(err).__name__, "ValidationError")
    else:
        raise SystemExit("a temperature of hot was taken")


check_openai()
check_anthropic()
check_ollama()
print("ok")
