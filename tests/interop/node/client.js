'use strict';
// The JavaScript client (npm's ali-ons) as a program:
//   client.js NAMESRV send TOPIC MODE COUNT PREFIX [delay=LEVEL] [sizes=N,N...] [namespace=NAME]
//     [pause=MS] [timeout=MS]
//   client.js NAMESRV consume TOPIC[,TOPIC...] GROUP EXPRESSION MODEL
//     [sql=true] [retries=N] [namespace=NAME]
// Modes: sync (one after the other), async (all at once), ordered (by key, one after the other).
// With a delay level each message has the next higher one; with sizes the body of each has the
// next of them. With `sql` the expression is SQL92. A message with the tag `refuse` is refused the
// first time, one with the tag `hate` always.
// ACCESS_KEY and SECRET_KEY of the environment are the account.
// JSON lines on standard output; a consumer runs until standard input is closed.
const { Consumer, Producer, Message } = require('ali-ons');
const { crc32 } = require('zlib');
// Asked for by the constructor, used only to find a name server by HTTP.
const httpclient = { request() { throw new Error('no HTTP here'); } };
const FILLER = 'abcdefghijklmnopqrstuvwxyz0123456789';
// None of them falls on queue 0 of 4: ali-ons takes that one for no queue at all.
const KEYS_ORDERED = [ 'k0', 'k1', 'k2', 'k3' ];

const report = (event, fields) => process.stdout.write(JSON.stringify({ event, ...fields }) + '\n');
const quiet = { info() {}, warn() {}, debug() {}, error(...args) { process.stderr.write(args.join(' ') + '\n'); } };
const common = (nameSrv, options) => ({
  httpclient, nameSrv, logger: quiet, namespace: options.namespace || '',
  accessKeyId: process.env.ACCESS_KEY, accessKeySecret: process.env.SECRET_KEY,
});
const asOptions = words => Object.fromEntries(words.map(word => word.split(/=(.*)/s).slice(0, 2)));

function newMessage(topic, mode, prefix, n, options) {
  const name = `${prefix}-${n}:`;
  const sizes = (options.sizes || '0').split(',');
  const missing = Math.max(0, Number(sizes[n % sizes.length]) - name.length);
  const body = name + FILLER.repeat(missing / FILLER.length + 1).slice(0, missing);
  const message = new Message(topic, 'ab'[n % 2], body);
  message.keys = [ `${prefix}${n}` ];
  message.properties.n = String(n);
  if (options.delay) message.delayTimeLevel = Number(options.delay) + n;
  if (mode === 'ordered') message.shardingKey = KEYS_ORDERED[n % KEYS_ORDERED.length];
  return message;
}

async function send(nameSrv, topic, mode, count, prefix, ...words) {
  const options = asOptions(words);
  const producer = new Producer({
    ...common(nameSrv, options), producerGroup: `js_${prefix}`, maxMessageSize: 4 << 20,
    sendMsgTimeout: Number(options.timeout || 10000),
  });
  await producer.ready();
  const sendOne = async n => {
    try {
      const result = await producer.send(newMessage(topic, mode, prefix, n, options));
      report('sent', { n, status: result.sendStatus, msgId: result.msgId, offset: result.queueOffset });
    } catch (error) {
      report('failed', { n, text: String(error) });
    }
  };
  if (mode === 'async') {
    await Promise.all([ ...Array(Number(count)).keys() ].map(sendOne));
  } else {
    for (let n = 0; n < Number(count); n++) {
      await sendOne(n);
      if (options.pause) await new Promise(resolve => setTimeout(resolve, Number(options.pause)));
    }
  }
  report('done');
  await ended();
  await producer.close();
}

async function consume(nameSrv, topics, group, expression, model, ...words) {
  const options = asOptions(words);
  const consumer = new Consumer({
    ...common(nameSrv, options), consumerGroup: group, isBroadcast: model === 'BROADCASTING',
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    ...(options.retries && { maxReconsumeTimes: Number(options.retries) }),
  });
  consumer.on('error', error => report('failed', { text: String(error) }));
  const wanted = options.sql ? { expressionType: 'SQL92', subString: expression } : expression;
  for (const topic of topics.split(',')) {
    consumer.subscribe(topic, wanted, async message => {
      report('message', {
        name: message.body.toString().split(':')[0], size: message.body.length, crc: crc32(message.body),
        topic: message.topic, tags: message.tags, keys: message.keys, n: message.properties.n,
        queue: message.queueId, offset: message.queueOffset, physical: Number(message.commitLogOffset),
        msgId: message.msgId, reconsume: message.reconsumeTimes,
        born: Number(message.bornTimestamp), stored: Number(message.storeTimestamp),
      });
      // ali-ons forgets ACTION_RETRY when the message comes again; an exception it does not.
      if (message.tags === 'hate') throw new Error('refused');
      if (message.tags === 'refuse' && !message.reconsumeTimes) return Consumer.ACTION_RETRY;
    });
  }
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
