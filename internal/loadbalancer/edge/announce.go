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

// Announce says how this machine announces its addresses by ARP and neighbour discovery, alone or
// with others of which one has each address.
type Announce struct {
	Name       string                // of this machine, one of Members
	Members    map[string]netip.Addr // where the heartbeats of each are received
	Key        []byte                // that they share
	Interfaces []string              // empty: all that have a network
	// Gateways are addresses that are announced beside those of Services: where the nodes send what is
	// for clients, where these are not masqueraded.
	Gateways []netip.Addr
	// LeaseNamespace is where the Lease is that is the third vote of two members.
	LeaseNamespace string
}

// announceFile is the field announce as it is written.
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

// alone is the only member's name where there are no others.
const alone = "edge"

// resolve fills in what is not written, and checks the rest.
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
		a.Key = make([]byte, keySize) // nobody else is listened to
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

// balance reads the algorithm of Services that name none.
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
