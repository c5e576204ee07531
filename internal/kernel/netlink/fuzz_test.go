package netlink

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// FuzzAttributes: no bytes make the parser panic or read beyond them. It finds the same attributes as mdlayher's
// decoder.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{})
	f.Add(AppendText(AppendText(nil, 1, "fairway"), 2|unix.NLA_F_NESTED, ""))
	f.Add([]byte{255, 255, 1, 0})
	f.Add([]byte{3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		type attribute struct {
			typ  uint16
			data []byte
		}
		var got []attribute
		total := 0
		err := Attributes(b, func(typ uint16, data []byte) error {
			total += len(data) + attributeHeader
			got = append(got, attribute{typ, data})
			return nil
		})
		if total > len(b) {
			t.Fatalf("%d bytes of attributes in %d", total, len(b))
		}
		d, reference := netlink.NewAttributeDecoder(b)
		if reference != nil || err != nil {
			return // the two parsers refuse different input
		}
		for i := 0; d.Next(); i++ {
			if i >= len(got) || got[i].typ != d.Type() || !bytes.Equal(got[i].data, d.Bytes()) {
				t.Fatalf("attribute %d of %x is type %d, %x", i, b, d.Type(), d.Bytes())
			}
		}
	})
}

// FuzzAnswers: no datagram makes the parser panic, and every answer is a part of the datagram.
func FuzzAnswers(f *testing.F) {
	e := binary.NativeEndian
	message := func(typ uint16, body ...byte) []byte {
		b := e.AppendUint32(nil, uint32(messageHeader+len(body)))
		b = e.AppendUint16(e.AppendUint16(b, typ), unix.NLM_F_MULTI)
		return append(e.AppendUint32(e.AppendUint32(b, 1), 0), body...)
	}
	f.Add(message(100, 1, 2, 3, 4))
	f.Add(append(message(100, 1, 2, 3, 4), message(unix.NLMSG_DONE, 0, 0, 0, 0)...))
	f.Add(message(unix.NLMSG_ERROR, 254, 255, 255, 255))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		_, _, _ = parseAnswers(b, 1, func(body []byte) error { total += messageHeader + len(body); return nil })
		if total > len(b) {
			t.Fatalf("%d bytes of messages in %d", total, len(b))
		}
	})
}
