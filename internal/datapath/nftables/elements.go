package nftables

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpBuffer is how much of a dump we take at once, the kernel's own maximum. To send
// the next piece the kernel walks the set from its start, so that a dump in small
// pieces grows with the square: 50,000 Services took 2.5 s in pages of 4 KiB.
const dumpBuffer = 32 << 10

// nftaSetElemKeyEnd is NFTA_SET_ELEM_KEY_END, which x/sys/unix lacks.
const nftaSetElemKeyEnd = 10

// An element is one that was read. Data and comment may be empty.
type element struct {
	key, last []byte // last: the end of a range in a concatenation
	data      []byte
	comment   string
	end       bool // the end of an interval
}

// elements calls f for each element of a set. It reads on a socket of its own with a
// large buffer, which google/nftables does not offer.
func (k *kernel) elements(set string, f func(element) error) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{MessageBufferSize: dumpBuffer})
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer c.Close()
	attrs, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(k.table.Name + "\x00")},
		{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	})
	if err != nil {
		return err
	}
	header := []byte{byte(k.table.Family), unix.NFNETLINK_V0, 0, 0} // struct nfgenmsg
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETSETELEM),
			Flags: netlink.Request | netlink.Dump,
		},
		Data: append(header, attrs...),
	})
	if err != nil {
		return err
	}
	for _, m := range msgs {
		if len(m.Data) < len(header) {
			return fmt.Errorf("message of %d bytes", len(m.Data))
		}
		if err := parseElements(m.Data[len(header):], f); err != nil {
			return err
		}
	}
	return nil
}

// parseElements calls f for each element in the attributes of one message.
func parseElements(b []byte, f func(element) error) error {
	return nested(b, func(typ uint16, b []byte) error {
		if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return nested(b, func(_ uint16, b []byte) error {
			e, err := parseElement(b)
			if err != nil {
				return err
			}
			return f(e)
		})
	})
}

func parseElement(b []byte) (e element, err error) {
	value := func(into *[]byte) func(uint16, []byte) error {
		return func(typ uint16, b []byte) error {
			if typ == unix.NFTA_DATA_VALUE {
				*into = b
			}
			return nil
		}
	}
	err = nested(b, func(typ uint16, b []byte) error {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			return nested(b, value(&e.key))
		case nftaSetElemKeyEnd:
			return nested(b, value(&e.last))
		case unix.NFTA_SET_ELEM_DATA:
			return nested(b, value(&e.data))
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = len(b) == 4 && binary.BigEndian.Uint32(b)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_USERDATA:
			e.comment, _ = userdata.GetString(b, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
		return nil
	})
	return e, err
}

// nested calls f for each attribute in b.
func nested(b []byte, f func(typ uint16, b []byte) error) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	for ad.Next() {
		if err := f(ad.Type(), ad.Bytes()); err != nil {
			return err
		}
	}
	return ad.Err()
}
