package observe

import (
	"encoding/binary"
	"encoding/hex"
	"testing"

	"github.com/fairway-net/fairway/internal/kernel/netlink"
)

// attribute returns one attribute of a trace message.
func attribute(typ uint16, b ...byte) []byte { return netlink.Append(nil, typ, b) }

func traceOf(attrs ...[]byte) []byte {
	b := []byte{1, 0, 0, 0}
	for _, a := range attrs {
		b = append(b, a...)
	}
	return b
}

// sample is a rule that drops a TCP SYN, with the attributes of Linux 6.18.
func sample() []byte {
	network, _ := hex.DecodeString("4500003c1c464000400651d30af401640af40206")
	transport, _ := hex.DecodeString("c9dc1f9000000001000000008002faf000000000")
	handle := binary.BigEndian.AppendUint64(nil, 17)
	verdict := netlink.Append(nil, verdictCode, []byte{0, 0, 0, 0})
	return traceOf(attribute(traceTable, []byte("firewall\x00")...), attribute(traceChain, []byte("forward\x00")...), attribute(traceHandle, handle...),
		attribute(traceType, 0, 0, 0, 3), attribute(traceVerdict, verdict...), attribute(traceID, 0x2e, 0x44, 0xa2, 0xc5),
		attribute(traceNetwork, network...), attribute(traceTransport, transport...), attribute(traceIn, 0, 0, 0, 2),
		attribute(traceFlow, 1, 2, 3, 4), attribute(traceDirection, 1))
}

func TestDecodeTrace(t *testing.T) {
	m, err := decodeTrace(sample())
	if err != nil {
		t.Fatal(err)
	}
	p, ok := m.packet()
	if !ok || p.Src.String() != "10.244.1.100:51676" || p.Dst.String() != "10.244.2.6:8080" || p.Flags != "SYN" || p.TTL != 64 || p.ID != 0x1c46 {
		t.Errorf("packet %+v, %v", p, ok)
	}
	if m.table != "firewall" || m.chain != "forward" || m.handle != 17 || m.kind != "rule" || m.verdict != "drop" || m.in != 2 || m.flow != 0x01020304 || !m.reply {
		t.Errorf("%+v", m)
	}
	for cut := range len(sample()) {
		_, _ = decodeTrace(sample()[:cut])
	}
}

// FuzzDecodeTrace: no message makes the decoder read beyond it, and what it accepts has a place.
func FuzzDecodeTrace(f *testing.F) {
	f.Add(sample())
	f.Add(traceOf(attribute(traceTable, 'x', 0)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeTrace(b)
		if err == nil && (m.table == "" || m.chain == "" || m.kind == "") {
			t.Errorf("accepted %+v", m)
		}
		m.packet()
	})
}
