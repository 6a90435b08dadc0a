// What test_responses_clients.py runs: node client.mjs BASE MODEL PART TOOLS.
import OpenAI from "openai";

const [base, model, part, tools] = process.argv.slice(2);
const client = new OpenAI({ baseURL: base, apiKey: "any", maxRetries: 0 });
const fixed = { model, temperature: 0, max_output_tokens: 6, ignore_eos: true };

async function text() {
  const whole = await client.responses.create({ input: "the cat", ...fixed });
  let streamed = "";
  for await (const event of await client.responses.create({ input: "the cat", stream: true, ...fixed })) {
    if (event.type === "response.output_text.delta") streamed += event.delta;
  }
  const final = await client.responses.stream({ input: "the cat", ...fixed }).finalResponse();
  const retrieved = await client.responses.retrieve(whole.id);
  const following = await client.responses.create({
    input: "more",
    previous_response_id: whole.id,
    ...fixed,
  });
  await client.responses.delete(whole.id);
  const missing = await client.responses.retrieve(whole.id).catch((error) => error.status);
  const refused = await client.responses
    .create({ input: "hi", tools: [{ type: "web_search" }], ...fixed })
    .catch((error) => [error.param, error.code]);
  return {
    whole: whole.output_text,
    streamed,
    final: final.output_text,
    retrieved: retrieved.output[0].content[0].text,
    first: whole.usage.total_tokens,
    following: following.usage.input_tokens,
    missing,
    refused,
  };
}

async function parse() {
  const { z } = await import("zod");
  const { zodTextFormat } = await import("openai/helpers/zod");
  const Pet = z.object({ name: z.enum(["Rex", "Tom"]), tame: z.boolean() });
  const response = await client.responses.parse({
    model,
    input: "a pet",
    max_output_tokens: 300,
    seed: 4,
    text: { format: zodTextFormat(Pet, "pet") },
  });
  return response.output_parsed;
}

async function toolCall() {
  const stream = client.responses.stream({
    model,
    input: "What time is it?",
    tools: JSON.parse(tools),
    max_output_tokens: 200,
  });
  let deltas = "";
  stream.on("response.function_call_arguments.delta", (event) => (deltas += event.delta));
  const [call] = (await stream.finalResponse()).output;
  return {
    name: call.name,
    arguments: JSON.parse(call.arguments),
    deltas: JSON.parse(deltas),
  };
}

const parts = { text, parse, tools: toolCall };
console.log(JSON.stringify(await parts[part]()));
