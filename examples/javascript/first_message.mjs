// The first message: one topic, one subscriber.
//
//     node examples/javascript/first_message.mjs oncemq://127.0.0.1:5554

import { connect } from "./oncemq.mjs";

const client = await connect(process.argv[2]);

await client.subscribe("orders", "kitchen");
const receipt = await client.put("orders", "one pizza", { key: "table-7" });
console.log(`stored at offset ${receipt.offset}, for ${receipt.subscriptions} subscription`);

const kitchen = await client.open("orders", "kitchen");
for (const message of await kitchen.get({ waitMs: 1000 })) {
  console.log(`${message.text}, for ${message.key}`);
  await kitchen.ack(message);
}
await kitchen.close();
await client.close();
