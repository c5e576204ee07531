package observe

import (
	"bufio"
	"context"
	"strconv"
	"strings"

	"github.com/fairway-net/fairway/internal/kernel/nft"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
)

// ownChain describes a chain of the probe's table, which is gone when the messages are joined.
func ownChain(name string) nft.Chain {
	c := nft.Chain{Name: name, Base: true, Type: "filter", Priority: numbers.HookTrace}
	if strings.HasPrefix(name, "reply-") {
		c.Priority = numbers.HookTraceReply
	}
	if name == chainOutput || name == chainReplyOutput {
		c.Hook = 3
	}
	return c
}

func familyOf(name string) nft.Family {
	for _, f := range []nft.Family{nft.Inet, nft.IPv4, nft.IPv6, nft.Netdev} {
		if f.String() == name {
			return f
		}
	}
	return nft.Any
}

type ruleKey struct {
	chainKey
	handle uint64
}

// maxRuleText bounds the text of one rule.
const maxRuleText = 400

// ruleTexts returns the rules of chains as nft prints them. nft reads one chain at a time: for several it would read the
// whole ruleset. It is no error that a chain has gone in the meantime.
func ruleTexts(ctx context.Context, chains []chainKey) (map[ruleKey]string, error) {
	texts := map[ruleKey]string{}
	for _, k := range chains {
		out, err := nft.PrintChain(ctx, k.family, k.table, k.chain)
		if ctx.Err() != nil {
			return texts, err
		}
		if err == nil {
			parseRules(string(out), func(k ruleKey, text string) { texts[k] = text })
		}
	}
	return texts, nil
}

// parseRules calls f for each rule in nft's output with handles.
func parseRules(out string, f func(ruleKey, string)) {
	var at chainKey
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		text, number, ok := strings.Cut(line, " # handle ")
		word := strings.Fields(text)
		switch {
		case len(word) == 4 && word[0] == "table" && word[3] == "{":
			at = chainKey{family: familyOf(word[1]), table: word[2]}
		case len(word) == 3 && word[0] == "chain" && word[2] == "{":
			at.chain = word[1]
		case ok:
			if handle, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64); err == nil {
				f(ruleKey{at, handle}, text[:min(len(text), maxRuleText)])
			}
		}
	}
}
