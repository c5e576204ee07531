package proxy

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/iptables"
	"github.com/fairway-net/fairway/internal/datapath/nftables"
	"github.com/fairway-net/fairway/internal/datapath/userspace"
	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/tabletest"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// TestFlush: a datapath's table that another program removes is there again within a second, without a timer.
func TestFlush(t *testing.T) {
	was := checkEvery
	t.Cleanup(func() { checkEvery = was })
	checkEvery = time.Hour
	log := slog.New(slog.DiscardHandler)
	for table, open := range map[string]func() (datapath.Datapath, error){
		numbers.TableNFTables:  func() (datapath.Datapath, error) { return nftables.New(nftables.Config{}) },
		numbers.TableIPTables:  func() (datapath.Datapath, error) { return iptables.New(iptables.Config{}) },
		numbers.TableUserspace: func() (datapath.Datapath, error) { return userspace.New(userspace.Config{Log: log}) },
	} {
		t.Run(table, func(t *testing.T) {
			ns := testnet.NewNamespace(t, "node")
			var tables nft.Monitor
			source := apiWith(3)
			close(source.synced)
			ctx, cancel := context.WithCancel(t.Context())
			done, hint := make(chan error, 1), tables.Changed(table)
			go func() {
				done <- ns.Do(func() error {
					dp, err := open()
					if err != nil {
						return err
					}
					defer dp.Close()
					return New(Config{
						Log: log, Source: source, Datapath: dp, TablesChanged: hint, Health: newHealth(),
						Facts:   func() service.Facts { return service.Facts{Node: service.Node{Name: "n"}} },
						Metrics: NewMetrics(MetricsConfig{Registry: prometheus.NewRegistry(), Mode: "tested"}),
					}).Run(ctx)
				})
			}()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
			tabletest.Start(t, ns.Do, &tables)
			tabletest.Flush(t, ns.Do, table)
		})
	}
}
