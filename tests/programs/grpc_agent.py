"""Calls a bank over gRPC. Arguments: TARGET, then for each transfer TO AMOUNT REFERENCE, or `statement`, or
`settle` and a transfer (answers stream), or `batch N` and N transfers (requests stream), or `haggle N` and N
transfers (each is sent when the one before was answered).

All calls go over one channel. Prints a JSON line for each: status, details, what was answered.
"""

import json
import queue
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
    settle = channel.unary_stream("/pay.Bank/Settle", write, read)
    batch = channel.stream_unary("/pay.Bank/Batch", write, read)
    haggle = channel.stream_stream("/pay.Bank/Haggle", write, read)

    def orders(count):
        taken = [rest[3 * n : 3 * n + 3] for n in range(count)]
        del rest[: 3 * count]
        return taken

    while rest:
        verb = rest[0]
        said, trailers = [], ()
        try:
            if verb == "statement":
                del rest[0]
                said = list(statement(("", 0, ""), timeout=60))
            elif verb == "settle":
                del rest[0]
                call = settle(orders(1)[0], timeout=60)
                for page in call:
                    said.append(page)
                trailers = call.trailing_metadata()
            elif verb == "batch":
                count = int(rest[1])
                del rest[:2]
                said, call = batch.with_call(iter(orders(count)), timeout=60)
                trailers = call.trailing_metadata()
            elif verb == "haggle":
                count = int(rest[1])
                del rest[:2]
                answers = queue.Queue()

                def one_by_one(list):
                    for order in list:
                        yield order
                        if not answers.get():
                            return

                try:
                    for answer in haggle(one_by_one(orders(count)), timeout=60):
                        said.append(answer)
                        answers.put(True)
                finally:
                    answers.put(False)
            else:
                said, call = transfer.with_call(orders(1)[0], timeout=60)
                trailers = call.trailing_metadata()
            answer = {"code": "OK", "said": said, "trailers": dict(trailers)}
        except grpc.RpcError as e:
            answer = {"code": e.code().name, "details": e.details(), "said": said}
        print(json.dumps(answer), flush=True)
