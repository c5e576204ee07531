package observe

import (
	"bufio"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

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

// textLimit bounds the time for reading rules as text. The rest of the rules has no text then.
const textLimit = 2 * time.Second

// ruleTexts returns the rules of chains as nft prints them. Family inet, with Fairway's tables, is read at once: it has few
// rules and large sets. Other families may have tens of thousands of rules (iptables), so they are read chain by chain:
// for several chains nft would read the whole ruleset. It is no error that a chain has gone in the meantime.
func ruleTexts(ctx context.Context, chains []chainKey) (map[ruleKey]string, error) {
	ctx, cancel := context.WithTimeout(ctx, textLimit)
	defer cancel()
	texts := map[ruleKey]string{}
	keep := func(out []byte) { parseRules(string(out), func(k ruleKey, text string) { texts[k] = text }) }
	if slices.ContainsFunc(chains, func(k chainKey) bool { return k.family == nft.Inet }) {
		out, err := nft.PrintFamily(ctx, nft.Inet)
		if err != nil {
			return texts, err
		}
		keep(out)
	}
	for _, k := range chains {
		if k.family == nft.Inet {
			continue
		}
		out, err := nft.PrintChain(ctx, k.family, k.table, k.chain)
		if ctx.Err() != nil {
			return texts, err
		}
		if err == nil {
			keep(out)
		}
	}
	return texts, nil
}

const handleComment = " # handle "

// parseRules calls f for each rule in nft's output with handles.
func parseRules(out string, f func(ruleKey, string)) {
	var at chainKey
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		text, number := line, ""
		found := strings.LastIndex(line, handleComment) // a comment of a rule may have the same text
		if found >= 0 {
			text, number = line[:found], line[found+len(handleComment):]
		}
		word := strings.Fields(text)
		switch {
		case len(word) == 4 && word[0] == "table" && word[3] == "{":
			at = chainKey{family: familyOf(word[1]), table: word[2]}
		case len(word) == 3 && word[0] == "chain" && word[2] == "{":
			at.chain = word[1]
		case found >= 0:
			if handle, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64); err == nil {
				f(ruleKey{at, handle}, text[:min(len(text), maxRuleText)])
			}
		}
	}
}
