package edge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/fairway-net/fairway/internal/service"
)

// Announce is the configuration of announcements by ARP and neighbour discovery. If there are several members, one of them
// has each address.
type Announce struct {
	Name       string                // of this machine, one of Members
	Members    map[string]netip.Addr // the address for each member's heartbeats
	Key        []byte                // shared by the members
	Interfaces []string              // empty: all with a network
	// Gateways are announced next to the addresses of Services. Nodes send packets for clients to them if this machine
	// does not masquerade clients.
	Gateways []netip.Addr
	// LeaseNamespace is the namespace of the Lease, which is the third vote of two members.
	LeaseNamespace string
}

// announceFile is the field announce of the file.
type announceFile struct {
	Name           string            `json:"name"`
	Members        map[string]string `json:"members"`
	KeyFile        string            `json:"keyFile"`
	Interfaces     []string          `json:"interfaces"`
	Gateways       []string          `json:"gateways"`
	LeaseNamespace string            `json:"leaseNamespace"`
}

// keySize is the least size of the key, in bytes.
const keySize = 32

// alone is the name of the only member.
const alone = "edge"

// resolve fills in defaults, and checks the rest.
func (f *announceFile) resolve() (*Announce, error) {
	if f == nil {
		return nil, nil
	}
	a := &Announce{Name: f.Name, Members: map[string]netip.Addr{}, Interfaces: f.Interfaces, LeaseNamespace: cmp.Or(f.LeaseNamespace, "kube-system")}
	var all []error
	for _, text := range f.Gateways {
		all = append(all, address("announce.gateways", text, func(g netip.Addr) { a.Gateways = append(a.Gateways, g) }))
	}
	if len(f.Members) == 0 {
		a.Name, a.Members[alone] = alone, netip.MustParseAddr("127.0.0.1")
		a.Key = make([]byte, keySize) // there is no other member
		return a, errors.Join(all...)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Members)) {
		all = append(all, address("announce.members", f.Members[name], func(at netip.Addr) { a.Members[name] = at }))
	}
	if len(f.Members) != 2 && len(f.Members) != 3 {
		all = append(all, fmt.Errorf("announce.members are %d [two, or three, which need no Lease for the third vote]", len(f.Members)))
	}
	if _, ok := f.Members[a.Name]; !ok {
		all = append(all, fmt.Errorf("announce.name is %q [which of announce.members is this machine: %s]", a.Name, strings.Join(slices.Sorted(maps.Keys(f.Members)), ", ")))
	}
	key, err := os.ReadFile(f.KeyFile)
	switch {
	case f.KeyFile == "":
		all = append(all, errors.New("announce.keyFile is missing [a file with the same 32 bytes or more on all members: head -c 32 /dev/urandom]"))
	case err != nil:
		all = append(all, fmt.Errorf("read announce.keyFile: %w", err))
	case len(key) < keySize:
		all = append(all, fmt.Errorf("announce.keyFile %s has %d bytes [32 or more: head -c 32 /dev/urandom]", f.KeyFile, len(key)))
	}
	a.Key = key
	return a, errors.Join(all...)
}

// address reads an address of a machine.
func address(field, text string, set func(netip.Addr)) error {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" || !a.IsGlobalUnicast() {
		return fmt.Errorf("%s has %q, which is no machine's address [such as 192.0.2.2]", field, text)
	}
	set(a)
	return nil
}

// balance reads the algorithm for Services without one.
func balance(text string) (service.Algorithm, error) {
	if text == "" {
		return service.Random, nil
	}
	a, err := service.ParseAlgorithm(text)
	if err != nil {
		return a, fmt.Errorf("balance is %q [choose one of random, rr, sh, dh, maglev]", text)
	}
	return a, nil
}
