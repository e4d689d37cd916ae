"""The relay passes bytes on, and keeps quiet about the end of what it leads to."""

import socket
import threading
import time

from jaxpar.distributed.rendezvous.relay import open_relay


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def stays_open(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        return client.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_bytes_pass_in_both_directions_and_the_end_of_the_service_does_not():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, connect(open_relay(f"127.0.0.1:{listener.getsockname()[1]}")) as client:
        service, _ = listener.accept()
        with service:
            client.sendall(b"question")
            assert service.recv(100) == b"question"
            long = bytes(range(256)) * 4096
            sender = threading.Thread(target=service.sendall, args=(long,))
            sender.start()
            found = b""
            while len(found) < len(long):
                found += client.recv(65536)
            sender.join()
            assert found == long
        for _ in range(3):
            assert stays_open(client, 0.2)
            client.sendall(b"still there?")


def test_the_end_of_the_client_is_passed_on():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = connect(open_relay(f"127.0.0.1:{listener.getsockname()[1]}"))
        service, _ = listener.accept()
        with service:
            client.close()
            service.settimeout(10)
            assert service.recv(1) == b""


def test_a_service_may_open_after_its_client_came():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with connect(open_relay(f"127.0.0.1:{port}")) as client:
        client.sendall(b"early")
        time.sleep(0.3)
        with socket.create_server(("127.0.0.1", port)) as listener:
            service, _ = listener.accept()
            with service:
                assert service.recv(100) == b"early"
