"""A bank over gRPC with TLS. Arguments: CERTIFICATE KEY. Says its port, and each payment that it books.

Messages are written by hand, as generated code would write them: 1 = to, 2 = amount, 3 = reference.
"""

import sys
import threading
from concurrent import futures

import grpc

lock = threading.Lock()
booked = {}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def read(data):
    fields, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        value, at = varint(data, at)
        if key & 7 == 2:
            fields[key >> 3] = data[at : at + value].decode()
            at += value
        else:
            fields[key >> 3] = value
    return fields


def text(number, value):
    data = value.encode()
    return bytes([number << 3 | 2, len(data)]) + data


def transfer(order, context):
    if order.get(1) == "closed-account":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the account is closed")
    with lock:
        known = booked.setdefault(order[3], len(booked) + 1)
        print("paid", order[1], order.get(2, 0), order[3], flush=True)
    context.set_trailing_metadata((("x-books", str(len(booked))),))
    return text(1, f"tr_{known:06}")


def statement(order, context):
    for page in range(3):
        yield text(1, f"page {page}")


def book(order):
    with lock:
        known = booked.setdefault(order[3], len(booked) + 1)
        print("paid", order[1], order.get(2, 0), order[3], flush=True)
    return f"tr_{known:06}"


def settle(order, context):
    number = book(order)
    context.set_trailing_metadata((("x-books", str(len(booked))),))
    for what in ("booked", "on its way", "settled"):
        yield text(1, f"{what} {number}")


def batch(orders, context):
    return text(1, " ".join([book(order) for order in orders]))


def haggle(orders, context):
    for order in orders:
        yield text(1, book(order))


class Bank(grpc.GenericRpcHandler):
    def service(self, call):
        if call.method == "/pay.Bank/Transfer":
            return grpc.unary_unary_rpc_method_handler(transfer, read)
        if call.method == "/pay.Bank/Statement":
            return grpc.unary_stream_rpc_method_handler(statement, read)
        if call.method == "/pay.Bank/Settle":
            return grpc.unary_stream_rpc_method_handler(settle, read)
        if call.method == "/pay.Bank/Batch":
            return grpc.stream_unary_rpc_method_handler(batch, read)
        if call.method == "/pay.Bank/Haggle":
            return grpc.stream_stream_rpc_method_handler(haggle, read)


certificate, key = (open(name, "rb").read() for name in sys.argv[1:3])
server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Bank()])
port = server.add_secure_port(
    "localhost:0", grpc.ssl_server_credentials([(key, certificate)])
)
server.start()
print("port", port, flush=True)
server.wait_for_termination()
