# A standing way to reach a process, from which it joins one group after the other.


cdef int64_t parse_generation(object value) except? -1:
    cdef object number
    if isinstance(value, (bool, np.bool_)):
        raise InvalidArgumentError(f"connect: generation is {shown(value)}; pass an integer from 0 on")
    try:
        number = value.__index__()
    except (AttributeError, TypeError, AssertionError):
        raise InvalidArgumentError(f"connect: generation is {shown(value)}; pass an integer from 0 on") from None
    if not 0 <= number < 2**63:
        raise InvalidArgumentError(f"connect: generation is {number}; it is a number from 0 to 2**63 - 1")
    return number


cdef int parse_handles(object handles, vector[string]& texts) except -1:
    cdef object wrong = None
    if isinstance(handles, (str, bytes)):
        raise InvalidArgumentError(f"connect: handles is {shown(handles)}; pass a list with one handle for each rank")
    try:
        entries = list(handles)
    except TypeError:
        raise InvalidArgumentError(f"connect: handles is {shown(handles)}; pass a list of handles") from None
    for i, handle in enumerate(entries):
        if isinstance(handle, str):
            texts.push_back(handle.encode("utf-8", "surrogateescape"))
        elif wrong is None:
            wrong = f"connect: handles[{i}] is {shown(handle)}; pass the text of Endpoint.handle"
    if wrong is not None:
        raise InvalidArgumentError(wrong)
    return 0


cdef class CoreEndpoint:
    """What a2a.Endpoint is made of: all its arguments are given. ``secret`` None is the one of A2A_SECRET_FILE or
    A2A_SECRET."""

    cdef EndpointPtr endpoint
    cdef double timeout

    def __cinit__(self, str address not None, secret, str host not None, *, timeout=600.0, check=None):
        cdef EndpointOptions options
        self.timeout = parse_timeout(timeout)
        options.address = os.fsencode(address)
        options.secret = (secret_from_environment() if secret is None
                          else secret.encode() if isinstance(secret, str) else secret)
        options.host = os.fsencode(host)
        options.communicator.timeout_seconds = self.timeout
        options.communicator.check = parse_check(check)
        if address:
            find_wheels()  # for UCX
        self.endpoint = create_endpoint(options)

    @property
    def handle(self):
        """The text by which others reach this endpoint. It goes to them by any means: a store, a file, a launcher. It
        is valid as long as this object, and lets in nobody who has not got the secret, or is another user of this
        host."""
        return dereference(self.endpoint).handle().decode()

    @property
    def generation(self):
        """The last generation that this endpoint was in, None before the first."""
        cdef int64_t number = dereference(self.endpoint).generation()
        return None if number < 0 else number

    def connect(self, handles, generation, *, timeout=None):
        """Collective over the endpoints listed, and nobody else: make the communicator of this generation, in which
        rank i is the endpoint of ``handles[i]``. All give the same list, which has their own handle, and the same
        number, which none of them has used before. ``timeout`` in seconds, by default 600, bounds this call; the
        communicator's own default is 600 seconds. Its ``generation``, ``handles`` and ``endpoint`` are those given, and
        ``joined`` lists the ranks whose former group is not that of the lowest rank that had one.

        The former communicator of this endpoint is aborted; its segments and connections are used again. Any thread may
        call it, one at a time.

        Raises InvalidArgumentError for a list without this endpoint's handle, an invalid handle, one twice, or one of
        another job, and for a generation that is negative or already used; the others then get MismatchError.
        MismatchError when lists or generations disagree, PeerLostError when a listed process is dead, TimeoutError
        naming those that do not come, UnsupportedError when one is on another host and has no address. The endpoint can
        be used again after each of them."""
        cdef vector[int] joined
        cdef vector[string] texts
        cdef int64_t number
        cdef When until
        cdef string why
        cdef CommPtr comm
        cdef Communicator made
        try:
            parse_handles(handles, texts)
            number = parse_generation(generation)
            until = deadline_after(self.timeout if timeout is None else parse_timeout(timeout))
        except InvalidArgumentError as error:
            why = str(error).encode("utf-8", "surrogateescape")
            with nogil:
                dereference(self.endpoint).decline(texts, why)  # the others do not wait for this endpoint
            raise
        with nogil:
            comm = connect_endpoint(dereference(self.endpoint), texts, number, until, joined)
        made = wrap(comm)
        made._endpoint, made._generation = self, number
        made._handles = [text.decode("utf-8", "surrogateescape") for text in texts]
        made._joined = list(joined)
        return made

    def recover(self, Communicator comm not None, timeout=None):
        """What Communicator.recover() calls."""
        raise UnsupportedError("recover: this endpoint is not of an elastic job; call connect() with the handles of "
                               "those that are left, or make the first communicator by a2a.init(elastic=True)")

    def __repr__(self):
        return f"<Endpoint {self.handle[:24]}..., generation {self.generation}>"
