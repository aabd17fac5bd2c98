"""The verbs: their options as Apache has them, and where each is implemented.

An option is written `letter:longName`, with `=` behind it when it takes a value and `!` in front
when it must be given: `!t:topic=`.
"""

from __future__ import annotations

from dataclasses import dataclass

_BROKERS = "twinlog.cli.mqadmin.brokers"
_TOPICS = "twinlog.cli.mqadmin.topics"
_GROUPS = "twinlog.cli.mqadmin.groups"
_MESSAGES = "twinlog.cli.mqadmin.messages"
_EXPORTS = "twinlog.cli.mqadmin.exports"
_CHECKS = "twinlog.cli.mqadmin.checks"
_ACCOUNTS = "twinlog.cli.mqadmin.accounts"
_BATCHES = "twinlog.cli.mqadmin.batches"
_CONTROLLERS = "twinlog.cli.mqadmin.controllers"


@dataclass(frozen=True, slots=True)
class Option:
    letter: str
    name: str
    has_value: bool
    is_required: bool


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    module: str
    function: str
    text: str
    options: tuple[Option, ...]


def _option(spec: str) -> Option:
    letter, _, name = spec.lstrip("!").rstrip("=").partition(":")
    return Option(letter, name, spec.endswith("="), spec.startswith("!"))


def _verb(name: str, module: str, text: str, options: str) -> Verb:
    function = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    function = function.replace("_r_t", "_rt").replace("_c_q", "_cq").replace("_m_q", "_mq")
    return Verb(name, module, function, text, tuple(map(_option, options.split())))


_PLACE = "b:brokerAddr= c:clusterName="
VERBS = {
    verb.name: verb
    for verb in (
        _verb("updateTopic", _TOPICS, "Create or change a topic",
              f"{_PLACE} !t:topic= r:readQueueNums= w:writeQueueNums= p:perm= o:order= u:unit= "
              "s:hasUnitSub="),
        _verb("deleteTopic", _TOPICS, "Delete a topic", "!t:topic= c:clusterName="),
        _verb("updateTopicPerm", _TOPICS, "Change the permission of a topic",
              f"{_PLACE} !t:topic= !p:perm="),
        _verb("topicRoute", _TOPICS, "Which brokers have a topic", "!t:topic= l:list"),
        _verb("topicStatus", _TOPICS, "Offsets of each queue of a topic",
              "!t:topic= c:clusterName="),
        _verb("topicClusterList", _TOPICS, "Clusters that have a topic", "!t:topic="),
        _verb("topicList", _TOPICS, "All topics of the name server", "c:clusterModel"),
        _verb("allocateMQ", _TOPICS, "How queues would be divided among clients",
              "!t:topic= !i:ipList="),
        _verb("updateOrderConf", _TOPICS, "Read or change the order configuration of a topic",
              "!t:topic= v:orderConf= !m:method="),
        _verb("updateSubGroup", _GROUPS, "Create or change a consumer group",
              f"{_PLACE} !g:groupName= s:consumeEnable= m:consumeFromMinEnable= "
              "d:consumeBroadcastEnable= q:retryQueueNums= r:retryMaxTimes= i:brokerId= "
              "w:whichBrokerWhenConsumeSlowly= a:notifyConsumerIdsChanged="),
        _verb("deleteSubGroup", _GROUPS, "Delete a consumer group",
              f"{_PLACE} !g:groupName= r:removeOffset="),
        _verb("getConsumerConfig", _GROUPS, "Settings of a consumer group", "!g:groupName="),
        _verb("consumerProgress", _GROUPS, "How far consumer groups have read",
              "g:groupName= t:topicName= s:showClientIP="),
        _verb("consumerConnection", _GROUPS, "Members and subscriptions of a group",
              "!g:consumerGroup= b:brokerAddr="),
        _verb("producerConnection", _GROUPS, "Producers of a group",
              "!g:producerGroup= !t:topic="),
        _verb("producer", _GROUPS, "All producers of a broker", "!b:broker="),
        _verb("resetOffsetByTime", _GROUPS, "Move a group to a time",
              "!g:group= !t:topic= !s:timestamp= f:force= c:cplus"),
        _verb("skipAccumulatedMessage", _GROUPS, "Move a group to the end",
              "!g:group= !t:topic= f:force="),
        _verb("cloneGroupOffset", _GROUPS, "Give a group the offsets of another",
              "!s:srcGroup= !d:destGroup= !t:topic= o:offline="),
        _verb("queryMsgById", _MESSAGES, "A message by its offset id",
              "!i:msgId= t:topic= g:consumerGroup= d:clientId= s:sendMessage= u:unitName="),
        _verb("queryMsgByKey", _MESSAGES, "Messages by key", "!t:topic= !k:msgKey="),
        _verb("queryMsgByUniqueKey", _MESSAGES, "A message by the id of its receipt",
              "!i:msgId= !t:topic= g:consumerGroup= d:clientId= a:showAll"),
        _verb("queryMsgByOffset", _MESSAGES, "The message at an offset of a queue",
              "!t:topic= !b:brokerName= !i:queueId= !o:offset="),
        _verb("printMsg", _MESSAGES, "Print messages of a topic",
              "!t:topic= c:charsetName= s:subExpression= b:beginTimestamp= e:endTimestamp= "
              "d:printBody="),
        _verb("printMsgByQueue", _MESSAGES, "Print messages of one queue",
              "!t:topic= !a:brokerName= !i:queueId= c:charsetName= s:subExpression= "
              "b:beginTimestamp= e:endTimestamp= p:printMsg= d:printBody= f:calculate="),
        _verb("sendMessage", _MESSAGES, "Send a message",
              "!t:topic= !p:body= k:key= c:tags= b:broker= i:qid= m:msgTraceEnable="),
        _verb("consumeMessage", _MESSAGES, "Read messages",
              "!t:topic= b:brokerName= i:queueId= o:offset= g:consumerGroup= s:beginTimestamp= "
              "e:endTimestamp= c:MessageNumber="),
        _verb("clusterList", _BROKERS, "All brokers of all clusters", "m:moreStats i:interval="),
        _verb("brokerStatus", _BROKERS, "Runtime statistics of brokers", _PLACE),
        _verb("getBrokerConfig", _BROKERS, "Settings of brokers", _PLACE),
        _verb("updateBrokerConfig", _BROKERS, "Change a setting of brokers",
              f"{_PLACE} !k:key= !v:value="),
        _verb("brokerConsumeStats", _BROKERS, "Progress of all groups of a broker",
              "!b:brokerAddr= t:timeoutMillis= l:level= o:order="),
        _verb("statsAll", _BROKERS, "Rates of topics and groups", "a:activeTopic t:topic="),
        _verb("wipeWritePerm", _BROKERS, "Keep producers from choosing a broker", "!b:brokerName="),
        _verb("addWritePerm", _BROKERS, "Let producers choose a broker again", "!b:brokerName="),
        _verb("getNamesrvConfig", _BROKERS, "Settings of the name servers", ""),
        _verb("updateNamesrvConfig", _BROKERS, "Change a setting of the name servers",
              "!k:key= !v:value="),
        _verb("updateKvConfig", _BROKERS, "Write a value of the name servers' table",
              "!s:namespace= !k:key= !v:value="),
        _verb("deleteKvConfig", _BROKERS, "Delete a value of the name servers' table",
              "!s:namespace= !k:key="),
        _verb("cleanExpiredCQ", _BROKERS, "Drop expired queue files",
              "b:brokerAddr= c:cluster="),
        _verb("deleteExpiredCommitLog", _BROKERS, "Drop expired log files",
              "b:brokerAddr= c:cluster="),
        _verb("cleanUnusedTopic", _BROKERS, "Drop queues of topics that are gone",
              "b:brokerAddr= c:cluster="),
        _verb("haStatus", _BROKERS, "Replication of a master or a slave", f"{_PLACE} i:interval="),
        _verb("resetMasterFlushOffset", _BROKERS,
              "Tell a slave of RocketMQ 5 what its master has flushed",
              "!b:brokerAddr= !o:offset="),
        _verb("consumerStatus", _CHECKS, "What the members of a group report about themselves",
              "!g:consumerGroup= i:clientId= b:brokerAddr= s:jstack"),
        _verb("queryMsgTraceById", _CHECKS, "Who sent and consumed a message, from its trace",
              "!i:msgId= t:traceTopic="),
        _verb("clusterRT", _CHECKS, "Time sends to each broker",
              "a:amount= s:size= c:cluster= p:printLog= m:machineRoom= i:interval="),
        _verb("checkMsgSendRT", _CHECKS, "Time sends to a topic", "!t:topic= a:amount= s:size="),
        _verb("queryCq", _CHECKS, "Entries of a consume queue",
              "!t:topic= !q:queue= !i:index= c:count= b:broker= g:consumer="),
        _verb("getControllerMetaData", _CONTROLLERS, "Which controller leads",
              "!a:controllerAddress="),
        _verb("getControllerConfig", _CONTROLLERS, "Settings of controllers",
              "!a:controllerAddress="),
        _verb("updateControllerConfig", _CONTROLLERS, "Change a setting of controllers",
              "!a:controllerAddress= !k:key= !v:value="),
        _verb("getSyncStateSet", _CONTROLLERS, "Which replicas are in sync",
              "!a:controllerAddress= c:clusterName= b:brokerName= i:interval="),
        _verb("getBrokerEpoch", _CONTROLLERS, "Where each epoch begins in the logs",
              "c:clusterName= b:brokerName= i:interval="),
        _verb("electMaster", _CONTROLLERS, "Make a replica the master",
              "!a:controllerAddress= !b:brokerId= !bn:brokerName= !c:clusterName="),
        _verb("cleanBrokerMetadata", _CONTROLLERS, "Let the controller forget replicas",
              "!a:controllerAddress= b:brokerControllerIdsToClean= !bn:brokerName= "
              "c:clusterName= l:cleanLivingBroker"),
        _verb("exportMetadata", _EXPORTS, "Write topics and groups to a file",
              "c:clusterName= b:brokerAddr= f:filePath= t:topic g:subscriptionGroup "
              "s:specialTopic"),
        _verb("exportConfigs", _EXPORTS, "Write the main settings of the brokers to a file",
              "!c:clusterName= f:filePath="),
        _verb("updateAclConfig", _ACCOUNTS, "Create or change an account",
              f"{_PLACE} !a:accessKey= !s:secretKey= w:whiteRemoteAddress= i:defaultTopicPerm= "
              "u:defaultGroupPerm= t:topicPerms= g:groupPerms= m:admin="),
        _verb("deleteAclConfig", _ACCOUNTS, "Remove an account", f"{_PLACE} !a:accessKey="),
        _verb("getAclConfig", _ACCOUNTS, "Accounts of brokers, without their secrets", _PLACE),
        _verb("clusterAclConfigVersion", _ACCOUNTS,
              "Which version of the access rules a broker has", _PLACE),
        _verb("updateGlobalWhiteAddr", _ACCOUNTS, "Addresses that need no account",
              f"{_PLACE} !g:globalWhiteRemoteAddresses= p:aclFileFullPath="),
        _verb("createUser", _ACCOUNTS, "Create an account",
              f"{_PLACE} !u:username= !p:password= t:userType="),
        _verb("updateUser", _ACCOUNTS, "Change an account",
              f"{_PLACE} !u:username= p:password= t:userType= s:userStatus="),
        _verb("deleteUser", _ACCOUNTS, "Remove an account", f"{_PLACE} !u:username="),
        _verb("getUser", _ACCOUNTS, "One account, without its secret", f"{_PLACE} u:username="),
        _verb("listUser", _ACCOUNTS, "Accounts, without their secrets", f"{_PLACE} f:filter="),
        _verb("createAcl", _ACCOUNTS, "Let an account use topics or groups, or not",
              f"{_PLACE} !s:subject= !r:resources= !a:actions= i:sourceIp= !d:decision="),
        _verb("updateAcl", _ACCOUNTS, "Change what an account may use",
              f"{_PLACE} !s:subject= !r:resources= !a:actions= i:sourceIp= !d:decision="),
        _verb("deleteAcl", _ACCOUNTS, "Take permissions from an account",
              f"{_PLACE} !s:subject= r:resources="),
        _verb("getAcl", _ACCOUNTS, "What an account may use", f"{_PLACE} s:subject="),
        _verb("listAcl", _ACCOUNTS, "What accounts may use", f"{_PLACE} s:subject= r:resource="),
        _verb("updateTopicList", _BATCHES, "Create or change the topics of a file",
              f"{_PLACE} !f:filename="),
        _verb("updateSubGroupList", _BATCHES, "Create or change the groups of a file",
              f"{_PLACE} !f:filename="),
        _verb("sendMsgStatus", _BATCHES, "Send to a broker and show each answer",
              "!b:brokerName= s:messageSize= c:count="),
        _verb("startMonitoring", _BATCHES, "Report lags and members of all groups, every minute",
              ""),
        _verb("exportMetrics", _EXPORTS, "Write statistics of the brokers to a file",
              "!c:clusterName= f:filePath="),
    )
}  # fmt: skip

# Other names of a verb.
VERB_ALIASES = {
    "getAccessConfigSubCommand": "getAclConfig",
    "deleteAccessConfig": "deleteAclConfig",
}

# Apache's other verbs, each with what to do instead.
REFUSED = {
    "updateStaticTopic": "static topics are RocketMQ 5's",
    "remappingStaticTopic": "static topics are RocketMQ 5's",
    "setConsumeMode": "POP consumption is RocketMQ 5's",
    "dumpCompactionLog": "there is no compaction log",
    "getColdDataFlowCtrInfo": "cold data control is RocketMQ 5's",
    "updateColdDataFlowCtrGroupConfig": "cold data control is RocketMQ 5's",
    "removeColdDataFlowCtrGroupConfig": "cold data control is RocketMQ 5's",
    "setCommitLogReadAheadMode": "cold data control is RocketMQ 5's",
    "addBroker": "broker containers are RocketMQ 5's",
    "removeBroker": "broker containers are RocketMQ 5's",
    "checkRocksdbCqWriteProgress": "queues are files here",
    "rocksDBConfigToJson": "settings are JSON files here",
    "exportMetadataInRocksDB": "use exportMetadata",
    "exportPopRecord": "POP consumption is RocketMQ 5's",
    "copyUser": "secrets cannot be read: copy conf/plain_acl.yml, or use createUser",
    "copyAcl": "copy conf/plain_acl.yml, or use createAcl",
}
