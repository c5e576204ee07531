package datapath

import (
	"context"
	"fmt"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/service"
)

// A Listing shows the rules of some datapaths. Programs read its JSON, so the fields stay.
type Listing struct {
	Modes []ModeListing `json:"modes"`
}

// A ModeListing is the listing of one datapath.
type ModeListing struct {
	service.Listing
	// Ejected are the endpoints that get no connections for a while.
	Ejected []Ejection `json:"ejected,omitempty"`
	// Objects are the kernel objects of each address, if they were asked for.
	Objects []AddressObjects `json:"objects,omitempty"`
}

// AddressObjects are the kernel objects of an address of a Service.
type AddressObjects struct {
	Address string   `json:"address"`
	Service string   `json:"service"`
	Objects []Object `json:"objects"`
}

// A Selection selects the content of a listing.
type Selection struct {
	Namespace string    // empty: all
	Only      *api.Name // nil: all
	Objects   bool      // also the kernel objects
}

// List reads the rules of a datapath from the kernel.
func List(ctx context.Context, dp Datapath, s Selection) (ModeListing, error) {
	held, err := dp.Adopt(ctx)
	if err != nil {
		return ModeListing{}, err
	}
	table := held.Table
	if services, _ := table.Len(); !held.Found && services == 0 {
		return ModeListing{}, fmt.Errorf("mode %s has no rules on this node [fairway dump without --proxy-mode shows every mode that has]", dp.Info().Name)
	}
	if s.Only != nil {
		if table = table.Only(*s.Only); table == nil {
			return ModeListing{}, fmt.Errorf("the kernel holds nothing for Service %v", *s.Only)
		}
	}
	l := ModeListing{Listing: table.List(dp.Info().Name, s.Namespace)}
	if l.Ejected, err = dp.Ejected(ctx); err != nil {
		return l, err
	}
	if !s.Objects {
		return l, nil
	}
	for _, f := range table.Sorted() {
		all, err := dp.Explain(ctx, f.Key())
		if err != nil {
			return l, err
		}
		l.Objects = append(l.Objects, AddressObjects{f.Key().String(), f.Service.String(), all})
	}
	return l, nil
}
