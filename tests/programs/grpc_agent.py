"""Calls a bank over gRPC. Arguments: TARGET, then for each transfer TO AMOUNT REFERENCE, or `statement`.

All calls go over one channel. Prints a JSON line for each: status, details, what was answered.
"""

import json
import sys

import grpc


def varint(value):
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def text(number, value):
    data = value.encode()
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def write(order):
    to, amount, reference = order
    return text(1, to) + b"\x10" + varint(int(amount)) + text(3, reference)


def read(data):
    return data[2:].decode()


target, *rest = sys.argv[1:]
with grpc.secure_channel(target, grpc.ssl_channel_credentials()) as channel:
    transfer = channel.unary_unary("/pay.Bank/Transfer", write, read)
    statement = channel.unary_stream("/pay.Bank/Statement", write, read)
    while rest:
        try:
            if rest[0] == "statement":
                rest = rest[1:]
                said, trailers = list(statement(("", 0, ""), timeout=60)), ()
            else:
                order, rest = rest[:3], rest[3:]
                said, call = transfer.with_call(order, timeout=60)
                trailers = call.trailing_metadata()
            answer = {"code": "OK", "said": said, "trailers": dict(trailers)}
        except grpc.RpcError as e:
            answer = {"code": e.code().name, "details": e.details()}
        print(json.dumps(answer), flush=True)
