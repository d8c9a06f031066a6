// The methods of the npm `openai` package that an ordinary application uses.

import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.env.CONFORMANCE_URL ?? "http://127.0.0.1:8000";
const model = process.env.CONFORMANCE_MODEL ?? "SmolLM2-135M-Instruct";
const apiKey = process.env.CONFORMANCE_KEY ?? "none";
const options = { baseURL: `${url}/v1`, maxRetries: 0, timeout: 300_000 };
const client = new OpenAI({ ...options, apiKey });

const messages = [{ role: "user", content: "What is the capital of France? Answer briefly." }];
const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "London"] } },
  required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", parameters } }];
const brief = { model, messages, temperature: 0, max_tokens: 20 };

const checks = {
  async models() {
    const ids = [];
    for await (const each of client.models.list()) ids.push(each.id);
    assert.ok(ids.includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async chat() {
    const answer = await client.chat.completions.create(brief);
    assert.match(answer.choices[0].message.content, /Paris/);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async stream() {
    const whole = await client.chat.completions.create(brief);
    const stream = await client.chat.completions.create({
      ...brief,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },

  async streamHelper() {
    const runner = client.chat.completions.stream(brief);
    const whole = await client.chat.completions.create(brief);
    assert.equal(await runner.finalContent(), whole.choices[0].message.content);
  },

  async toolsLoop() {
    const runner = client.chat.completions.runTools({
      model,
      messages,
      temperature: 0,
      max_tokens: 100,
      tool_choice: { type: "function", function: { name: "get_weather" } },
      tools: [
        {
          type: "function",
          function: { name: "get_weather", parameters, parse: JSON.parse, function: ({ city }) => `21 C in ${city}` },
        },
      ],
    });
    await runner.done();
    const calls = runner.messages.filter((message) => message.role === "tool");
    assert.ok(calls.length >= 1);
    assert.match(calls[0].content, /21 C in (Paris|London)/);
  },

  async streamedTool() {
    const stream = await client.chat.completions.create({
      ...brief,
      max_tokens: 100,
      tools,
      tool_choice: "required",
      stream: true,
    });
    let name = "";
    let written = "";
    for await (const chunk of stream) {
      const call = chunk.choices[0]?.delta?.tool_calls?.[0];
      name ||= call?.function?.name ?? "";
      if (call?.index === 0) written += call.function?.arguments ?? "";
    }
    assert.equal(name, "get_weather");
    assert.ok(["Paris", "London"].includes(JSON.parse(written).city));
  },

  async parse() {
    const answer = await client.chat.completions.parse({
      ...brief,
      max_tokens: 100,
      response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema: parameters } },
    });
    assert.ok(["Paris", "London"].includes(answer.choices[0].message.parsed.city));
  },

  async completions() {
    const answer = await client.completions.create({ model, prompt: "Once upon", max_tokens: 4, n: 2, logprobs: 1 });
    assert.equal(answer.choices.length, 2);
    assert.equal(answer.choices[0].logprobs.tokens.length, 4);
  },

  async embeddings() {
    const answer = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
    assert.equal(answer.data.length, 2);
    assert.ok(answer.data[0].embedding.length > 100);
    assert.ok(Math.abs(Math.hypot(...answer.data[0].embedding) - 1) < 1e-3);
  },

  async responses() {
    const answer = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16 });
    assert.ok(answer.output_text.length > 0);
    assert.equal((await client.responses.retrieve(answer.id)).output_text, answer.output_text);
    const stream = await client.responses.create({ model, input: "Say hello.", max_output_tokens: 16, stream: true });
    const types = [];
    for await (const event of stream) types.push(event.type);
    assert.equal(types[0], "response.created");
    assert.match(types.at(-1), /^response\.(completed|incomplete)$/);
  },

  async errors() {
    await assert.rejects(client.chat.completions.create({ ...brief, model: "nobody" }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ ...brief, temperature: 5 }), OpenAI.BadRequestError);
    await assert.rejects(new OpenAI({ ...options, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}\n${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
