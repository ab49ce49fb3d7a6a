from exporters.nvml.gpu_names import GpuNames


def learnt(names, *uuids):
    """Take GPUs in the order of their indices; None is one that has not answered."""
    names.found(len(uuids))
    for index, uuid in enumerate(uuids):
        if uuid is not None:
            names.learn(index, uuid)
    return [names.name(index) for index in range(len(uuids))]


def test_gpus_are_called_by_the_index_at_which_they_were_first_seen():
    """Whatever their order is later."""
    names = GpuNames()
    assert learnt(names, "a", "b", "c") == ["0", "1", "2"]
    assert learnt(names, "c", "a", "b") == ["2", "0", "1"]
    assert names.by_uuid() == {"a": "0", "b": "1", "c": "2"}


def test_one_that_is_missing_keeps_its_name_and_gets_it_back():
    """Those behind it do not move up, and a new one takes no name that another has had."""
    names = GpuNames()
    learnt(names, "a", "b", "c")
    assert learnt(names, "a", "c") == ["0", "2"]
    assert names.all() == ("0", "1", "2")
    assert learnt(names, "a", "new", "c") == ["0", "3", "2"]
    assert learnt(names, "a", "b", "c", "new") == ["0", "1", "2", "3"]


def test_one_that_does_not_answer_has_a_name_of_its_own():
    """Its index, or that of one that is missing; once it answers it has its own."""
    names = GpuNames()
    assert learnt(names, "a", None, "c") == ["0", "1", "2"]
    assert learnt(names, "a", "c", None) == ["0", "2", "1"]
    assert learnt(names, "a", "c", "b") == ["0", "2", "1"]


def test_names_are_unique_in_every_order_of_answers():
    """Also while only some GPUs are known to have moved."""
    names = GpuNames()
    learnt(names, *"abcdefgh")
    names.found(7)
    for index, uuid in ((6, "h"), (2, "d"), (5, "g"), (0, "a"), (4, "f"), (3, "e"), (1, "b")):
        names.learn(index, uuid)
        assert len({names.name(i) for i in range(7)}) == 7
    assert [names.name(i) for i in range(7)] == ["0", "1", "3", "4", "5", "6", "7"]
