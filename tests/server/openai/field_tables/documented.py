"""The request fields that the documents of the HTTP surface name, route by route."""


def names(text):
    return text.split()


SAMPLING = names("""
    model max_tokens temperature top_p top_k min_p repetition_penalty frequency_penalty
    presence_penalty n use_beam_search length_penalty seed stop stop_token_ids
    include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens echo prompt_logprobs logprob_token_ids logit_bias
    allowed_token_ids bad_words truncate_prompt_tokens truncation_side add_special_tokens
    response_format structured_outputs stream stream_options stream_interval priority request_id
    session_id return_token_ids return_tokens_as_token_ids cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection thinking_token_budget logprobs
""")

FIELDS = {
    "completions": SAMPLING
    + names("""
        prompt prompt_embeds suffix best_of user service_tier
    """),
    "chat": SAMPLING
    + names("""
        messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls
        reasoning_effort include_reasoning add_generation_prompt continue_final_message documents
        chat_template chat_template_kwargs mm_processor_kwargs media_io_kwargs return_prompt_text
        return_assistant_tokens_mask user store metadata service_tier modalities prediction audio
    """),
    "responses": names("""
        input instructions model max_output_tokens max_tool_calls temperature top_p top_logprobs
        stream store background previous_response_id reasoning text tools tool_choice
        parallel_tool_calls truncation include metadata user service_tier prompt prompt_cache_key
        top_k presence_penalty frequency_penalty repetition_penalty logit_bias seed stop
        ignore_eos skip_special_tokens include_stop_str_in_output structured_outputs
        chat_template_kwargs mm_processor_kwargs media_io_kwargs include_reasoning
        enable_response_messages previous_input_messages request_id session_id priority cache_salt
        vllm_xargs kv_transfer_params ec_transfer_params
    """),
    "messages": names("""
        model messages max_tokens system stop_sequences stream temperature top_p top_k tools
        tool_choice metadata output_config thinking cache_salt kv_transfer_params
        chat_template_kwargs
    """),
    "tokenize prompt": names("model prompt add_special_tokens return_token_strs"),
    "tokenize chat": names("""
        messages add_generation_prompt continue_final_message add_special_tokens chat_template
        chat_template_kwargs media_io_kwargs mm_processor_kwargs tools return_token_strs
    """),
    "detokenize": names("model tokens"),
    "generate": names("""
        request_id model token_ids token_offsets content_parts features sampling_params
        return_token_ids output_mode return_token_logprobs return_top_k_logprobs reasoning_ended
        reasoning_parser_kwargs stream stream_options cache_salt priority kv_transfer_params
        ec_transfer_params
    """),
    "sampling parameters": names("""
        n temperature top_p top_k min_p repetition_penalty frequency_penalty presence_penalty seed
        stop stop_token_ids max_tokens min_tokens ignore_eos logprobs prompt_logprobs detokenize
        skip_special_tokens logit_bias allowed_token_ids bad_words structured_outputs
    """),
    "rpc": names("method args kwargs timeout"),
    "abort": names("request_ids"),
    "abort of tokens only": names("request_ids"),
    "pause": names("mode clear_cache"),
    "sleep": names("level mode"),
    "wake up": names("tags"),
    "reset prefix cache": names("reset_running_requests reset_external"),
    "server info": names("config_format"),
}
"""Request type -> its fields."""

IGNORED = {
    "best_of": (3, "it was removed; older clients still send it"),
    "user": ("u", "it names the client's user and decides nothing"),
    "service_tier": ("auto", "there is one tier"),
    "store": (True, "chat completions are not kept"),
    "metadata": ({"a": "b"}, "it is for the client's own records"),
    "modalities": (["audio"], "answers are text"),
    "prediction": ({"type": "content", "content": "x"}, "nothing is guessed ahead"),
    "audio": ({"voice": "x", "format": "wav"}, "answers are text"),
    "guided_json": ({"a": 1}, "structured_outputs took its place"),
    "guided_regex": ("a", "structured_outputs took its place"),
    "guided_choice": (["a"], "structured_outputs took its place"),
    "guided_grammar": ("a", "structured_outputs took its place"),
    "guided_decoding_backend": ("x", "the backend is chosen by the server"),
    "truncate_prompt": (1, "it was removed"),
    "x_vendor": ({"k": [1]}, "nobody knows it"),
}
"""Fields that no type has, because they change nothing: a value, and why."""
