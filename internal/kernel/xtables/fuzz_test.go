package xtables

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// attribute is one attribute of netlink.
func attribute(typ uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(body)))
	b = append(binary.NativeEndian.AppendUint16(b, typ), body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// expression is one expression of a rule.
func expression(name string, attrs ...[]byte) []byte {
	var data []byte
	for _, a := range attrs {
		data = append(data, a...)
	}
	return attribute(unix.NFTA_LIST_ELEM, append(attribute(unix.NFTA_EXPR_NAME, append([]byte(name), 0)), attribute(unix.NFTA_EXPR_DATA, data)...))
}

func big(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// FuzzDecode: no expressions make Decode panic or read beyond them.
func FuzzDecode(f *testing.F) {
	load := expression("payload", attribute(unix.NFTA_PAYLOAD_BASE, big(1)), attribute(unix.NFTA_PAYLOAD_OFFSET, big(12)), attribute(unix.NFTA_PAYLOAD_LEN, big(4)))
	compare := expression("cmp", attribute(unix.NFTA_CMP_OP, big(0)), attribute(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, []byte{10, 0, 0, 1})))
	f.Add(true, append(load, compare...))
	for name, k := range matches {
		f.Add(true, expression("match", attribute(unix.NFTA_MATCH_NAME, []byte(name[:len(name)-2])), attribute(unix.NFTA_MATCH_REV, big(uint32(name[len(name)-1]-'0'))), attribute(unix.NFTA_MATCH_INFO, make([]byte, k.size))))
	}
	for name, k := range targets {
		f.Add(false, expression("target", attribute(unix.NFTA_MATCH_NAME, []byte(name[:len(name)-2])), attribute(unix.NFTA_MATCH_REV, big(uint32(name[len(name)-1]-'0'))), attribute(unix.NFTA_MATCH_INFO, make([]byte, k.size))))
	}
	f.Fuzz(func(t *testing.T, is4 bool, b []byte) {
		if text, ok := Decode(is4, b); ok && len(text) > 8*len(b)+64 {
			t.Fatalf("%d bytes became %q", len(b), text)
		}
	})
}

// TestDecode: a rule is unknown if it has anything that Decode does not know.
func TestDecode(t *testing.T) {
	meta := expression("meta", attribute(unix.NFTA_META_KEY, big(unix.NFT_META_L4PROTO)))
	compare := func(op uint32, value ...byte) []byte {
		return expression("cmp", attribute(unix.NFTA_CMP_OP, big(op)), attribute(unix.NFTA_CMP_DATA, attribute(unix.NFTA_DATA_VALUE, value)))
	}
	port := expression("payload", attribute(unix.NFTA_PAYLOAD_BASE, big(unix.NFT_PAYLOAD_TRANSPORT_HEADER)), attribute(unix.NFTA_PAYLOAD_OFFSET, big(2)), attribute(unix.NFTA_PAYLOAD_LEN, big(2)))
	jump := expression("immediate", attribute(unix.NFTA_IMMEDIATE_DREG, big(0)), attribute(unix.NFTA_IMMEDIATE_DATA,
		attribute(unix.NFTA_DATA_VERDICT, append(attribute(unix.NFTA_VERDICT_CODE, []byte{255, 255, 255, 253}), attribute(unix.NFTA_VERDICT_CHAIN, []byte("KUBE-SVC\x00"))...))))
	comment := expression("match", attribute(unix.NFTA_MATCH_NAME, []byte("comment\x00")), attribute(unix.NFTA_MATCH_REV, big(0)), attribute(unix.NFTA_MATCH_INFO, []byte("a b\x00")))
	later := expression("match", attribute(unix.NFTA_MATCH_NAME, []byte("comment\x00")), attribute(unix.NFTA_MATCH_REV, big(1)), attribute(unix.NFTA_MATCH_INFO, []byte("a b\x00")))
	for _, c := range []struct {
		exprs [][]byte
		want  string // empty: unknown
	}{
		{[][]byte{meta, compare(0, 6), comment, port, compare(0, 0, 80), expression("counter"), jump}, `-p tcp -m comment --comment "a b" -m tcp --dport 80 -j KUBE-SVC`},
		{[][]byte{meta, compare(1, 17), jump}, "! -p udp -j KUBE-SVC"},
		{[][]byte{meta, compare(0, 6), later, jump}, ""},                               // another revision
		{[][]byte{meta, compare(2, 6), jump}, ""},                                      // less than
		{[][]byte{meta, compare(0, 6), meta, compare(0, 17), jump}, ""},                // twice
		{[][]byte{meta, jump}, ""},                                                     // loaded and not compared
		{[][]byte{port, compare(0, 0, 80), jump}, ""},                                  // a port of no protocol
		{[][]byte{meta, compare(0, 6), port, compare(0, 0, 80), port, jump, jump}, ""}, // two targets
		{[][]byte{meta, compare(0, 6), expression("range"), jump}, ""},                 // a range of ports
		{[][]byte{expression("limit"), jump}, ""},
		{[][]byte{compare(0, 6), jump}, ""},
	} {
		var all []byte
		for _, e := range c.exprs {
			all = append(all, e...)
		}
		if got, ok := Decode(true, all); got != c.want || ok != (c.want != "") {
			t.Errorf("%q (%v), want %q", got, ok, c.want)
		}
	}
}
