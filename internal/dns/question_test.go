package dns

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/net/bpf"
)

// A parsed question is what miekg/dns reads from the message, and the kernel's filter gives it to the front.
func FuzzQuestion(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 40 {
		f.Add(randomMessage(rng))
	}
	zones := []*frontZone{{wire: []byte("\x07cluster\x05local")}, {wire: []byte("\x03two\x04zone")}}
	vm := filterVM(f, zones)
	f.Fuzz(func(t *testing.T, msg []byte) {
		verdict, err := vm.Run(msg)
		if err != nil {
			t.Fatal(err)
		}
		q, ok := parseQuestion(msg)
		inZone := ok && slices.ContainsFunc(zones, func(z *frontZone) bool { return q.isIn(z.wire) })
		if inZone && verdict != 1 && bytes.Count(q.name, []byte{0}) == 0 && dns.CountLabel(nameOf(q.name)) < maxLabels {
			t.Fatalf("the filter keeps the question %q from the front", q.name)
		}
		if !ok {
			return
		}
		m := new(dns.Msg)
		if err := m.Unpack(msg); err != nil {
			t.Fatalf("parsed, but no message: %v", err)
		}
		if len(m.Question) != 1 || m.Question[0] != (dns.Question{Name: nameOf(q.name), Qtype: q.qtype, Qclass: dns.ClassINET}) {
			t.Fatalf("parsed %q %d, but it asks %v", q.name, q.qtype, m.Question)
		}
		if o := m.IsEdns0(); (o != nil) != q.hasOPT || o != nil && (o.Do() != q.do || q.size != max(dns.MinMsgSize, int(o.UDPSize())) || len(o.Option) > 0 || o.Version() != 0) {
			t.Fatalf("parsed %+v, but the OPT record is %v", q, o)
		}
		if len(m.Answer)+len(m.Ns) > 0 || m.Response || m.Opcode != 0 || m.Truncated || m.Zero {
			t.Fatalf("parsed, but the message is\n%v", m)
		}
		if want := plainSuffix(m.Question[0].Name, "cluster.local."); q.isIn(zones[0].wire) != want {
			t.Fatalf("%s is in cluster.local: %t, parsed %t", m.Question[0].Name, want, !want)
		}
	})
}

func plainSuffix(name, zone string) bool { return name == zone || strings.HasSuffix(name, "."+zone) }

// filterVM returns the filter as a program of the user-space machine.
func filterVM(t testing.TB, zones []*frontZone) *bpf.VM {
	t.Helper()
	program, err := frontFilter(zones)
	if err != nil {
		t.Fatal(err)
	}
	var all []bpf.Instruction
	for _, i := range program {
		all = append(all, bpf.RawInstruction{Op: i.Code, Jt: i.Jt, Jf: i.Jf, K: i.K}.Disassemble())
	}
	vm, err := bpf.NewVM(all)
	if err != nil {
		t.Fatal(err)
	}
	return vm
}

// The filter sends names of the zones to the front, and nothing else.
func TestFrontFilter(t *testing.T) {
	vm := filterVM(t, []*frontZone{{wire: []byte("\x07cluster\x05local")}, {wire: []byte("\x03two\x04zone")}})
	for name, want := range map[string]int{
		"web.prod.svc.cluster.local.": 1, "cluster.local.": 1, "a.two.zone.": 1, "two.zone.": 1,
		"local.": 0, "xcluster.local.": 0, "example.com.": 0, ".": 0, "cluster.local.example.com.": 0,
		strings.Repeat("a.", maxLabels-3) + "cluster.local.": 1, strings.Repeat("a.", maxLabels) + "cluster.local.": 0,
	} {
		msg := pack(t, new(dns.Msg).SetQuestion(name, dns.TypeA))
		if got, err := vm.Run(msg); err != nil || got != want {
			t.Errorf("%s goes to socket %d, want %d (%v)", name, got, want, err)
		}
		binary.BigEndian.PutUint16(msg[2:], dns.OpcodeStatus<<11)
		if got, _ := vm.Run(msg); got != 0 {
			t.Errorf("STATUS for %s goes to the front", name)
		}
	}
}
