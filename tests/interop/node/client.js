'use strict';
// The JavaScript client (npm's ali-ons) as a program:
//   client.js NAMESRV send TOPIC COUNT PREFIX [FIRST_DELAY_LEVEL]
//   client.js NAMESRV consume TOPIC GROUP EXPRESSION MODEL
// With a delay level each message has the next higher one.
// ACCESS_KEY and SECRET_KEY of the environment are the account.
// A message with the tag `refuse` is refused the first time.
// JSON lines on standard output; a consumer runs until standard input is closed.
const { Consumer, Producer, Message } = require('ali-ons');
// Asked for by the constructor, used only to find a name server by HTTP.
const httpclient = { request() { throw new Error('no HTTP here'); } };

const report = (event, fields) => process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
const quiet = { info() {}, warn() {}, debug() {}, error(...args) { process.stderr.write(args.join(' ') + '\n'); } };
const common = nameSrv => ({
  httpclient, nameSrv, logger: quiet,
  accessKeyId: process.env.ACCESS_KEY, accessKeySecret: process.env.SECRET_KEY,
});

async function send(nameSrv, topic, count, prefix, firstLevel) {
  const producer = new Producer({ ...common(nameSrv), producerGroup: `js_${prefix}` });
  await producer.ready();
  for (let n = 0; n < Number(count); n++) {
    const message = new Message(topic, 'ab'[n % 2], `${prefix}-${n}:`);
    message.keys = [ `${prefix}${n}` ];
    if (firstLevel) message.delayTimeLevel = Number(firstLevel) + n;
    try {
      const result = await producer.send(message);
      report('sent', { n, status: result.sendStatus, msgId: result.msgId, offset: result.queueOffset });
    } catch (error) {
      report('failed', { n, text: String(error) });
    }
  }
  report('done');
  await ended();
  await producer.close();
}

async function consume(nameSrv, topic, group, expression, model) {
  const consumer = new Consumer({
    ...common(nameSrv), consumerGroup: group, isBroadcast: model === 'BROADCASTING', consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  consumer.on('error', error => report('failed', { text: String(error) }));
  consumer.subscribe(topic, expression, async message => {
    report('message', {
      name: message.body.toString().split(':')[0], tags: message.tags, keys: message.keys,
      queue: message.queueId, offset: message.queueOffset, msgId: message.msgId, reconsume: message.reconsumeTimes,
    });
    if (message.tags === 'refuse' && !message.reconsumeTimes) throw new Error('refused once');
  });
  await consumer.ready();
  report('started');
  await ended();
  await consumer.close();
}

function ended() {
  return new Promise(resolve => process.stdin.on('end', resolve).resume());
}

const [ nameSrv, command, ...rest ] = process.argv.slice(2);
const main = { send, consume }[command];
main(nameSrv, ...rest).then(() => process.exit(0), error => {
  report('error', { text: String(error && error.stack) });
  process.exit(1);
});
