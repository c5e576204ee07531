package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairway-net/fairway/internal/command/agent/config"
	"github.com/fairway-net/fairway/internal/datapath"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/datapath/takeover"
	"github.com/fairway-net/fairway/internal/kube"
	"github.com/fairway-net/fairway/internal/operate/status"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// TestHandoverPending: an agent of mode none opens the mode whose rules are on its node, and says so
// in its status and as a metric until another proxy has taken over; a node without rules needs none.
func TestHandoverPending(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	err := testnet.NewNamespace(t, "node").Do(func() error {
		a := &agent{cfg: &config.Config{Mode: datapath.None, NodeName: "node-1"}, log: log}
		says := newAgentStatus(a.cfg, "v")
		if dp := a.openRelease(t.Context(), says); dp != nil || len(says.board.Conditions()) > 0 || a.cfg.Mode != datapath.None {
			t.Errorf("without rules: %v, %v, mode %s", dp, says.board.Conditions(), a.cfg.Mode)
		}
		former, err := modes.All().Choose(t.Context(), log, datapath.NFTables, modes.Options{})
		if err != nil {
			return err
		}
		defer former.Close()
		if _, err := former.Sync(t.Context(), service.NewTable(service.Settings{}, nil)); err != nil {
			return err
		}
		dp := a.openRelease(t.Context(), says)
		if dp == nil {
			return errors.New("it does not find the rules of mode nftables")
		}
		defer dp.Close()
		if all := says.board.Conditions(); len(all) != 1 || all[0].Reason != status.HandoverPending || !strings.Contains(all[0].Message, datapath.NFTables) || a.cfg.Mode != datapath.NFTables {
			t.Errorf("with rules: %v, mode %s", all, a.cfg.Mode)
		}
		registry := prometheus.NewRegistry()
		ended, end := context.WithCancel(t.Context())
		end()
		b := &base{cfg: a.cfg, registry: registry, events: kube.NewRecorder(log, nil, "node-1")}
		if err := newRelease(b, dp)(ended); err != nil && !errors.Is(err, takeover.ErrReleased) {
			return err
		}
		metrics, err := registry.Gather()
		if err != nil || len(metrics) != 1 || metrics[0].GetName() != "fairway_release_pending" || metrics[0].GetMetric()[0].GetGauge().GetValue() != 1 {
			t.Errorf("metrics %v, %v", metrics, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
